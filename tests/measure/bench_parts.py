"""What ranks do in tests of groups of ranks."""

import os
import signal

import torch
import torch.distributed as dist

from matinee.errors import ConfigError


class Adds:
    """Sums a number over the ranks of a turn; or fails, or dies, on rank 1."""

    def __init__(self, offset):
        self.offset = offset

    def __call__(self, place, payload):
        if payload == "fail" and place.rank == 1:
            raise ConfigError("rank 1 will not")
        if payload == "die" and place.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if payload in ("fail", "die"):
            return None
        value = torch.tensor([float(place.rank + self.offset)])
        if place.group is not None:
            dist.all_reduce(value, group=place.group)
        return place.rank, place.world, value.item(), torch.get_num_threads()
