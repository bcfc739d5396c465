"""The processes of a run, and what they must agree on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from matinee.errors import ConfigError, MatineeError
from matinee.training.parallel.environment import RankEnvironment
from matinee.training.precision import pick_device

T = TypeVar("T")
_BEGUN = count()
"""Of process groups; ranks begin equally many, and none may meet in the place of another."""


class Pending(Protocol):
    """A sum over ranks that may still be under way."""

    def result(self) -> list[int]: ...


@dataclass(frozen=True)
class _Known:
    values: list[int]

    def result(self) -> list[int]:
        return self.values


@dataclass(frozen=True)
class _Reducing:
    values: Tensor
    work: Any

    def result(self) -> list[int]:
        self.work.wait()
        return [int(value) for value in self.values.tolist()]


@dataclass(frozen=True)
class Ranks:
    """Which rank this process is, of how many, and on which device. One process is rank 0 of 1.

    Every method with more than one rank is a collective: all must call it.
    """

    rank: int
    world: int
    local_world: int
    device: torch.device
    restarted: bool = False
    """By torchrun, after a rank was lost."""

    @property
    def is_main(self) -> bool:
        """Rank 0, the only one that writes."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for all."""
        if self.world > 1:
            dist.barrier()

    def on_main(self, act: Callable[[], T]) -> T:
        """What `act` returns on rank 0, where alone it runs.

        Raises:
            MatineeError: `act` raised it; then on all ranks.
        """
        if self.world == 1:
            return act()
        box: list[Any] = [None, None]
        if self.is_main:
            try:
                box[0] = act()
            except (MatineeError, OSError) as error:
                box[1] = error
            except Exception as error:  # a fault, of which the others need not have the class
                dist.broadcast_object_list([None, MatineeError(f"rank 0: {error}")], src=0)
                raise
        dist.broadcast_object_list(box, src=0)
        if isinstance(box[1], BaseException):
            raise box[1]
        value: T = box[0]
        return value

    def add_up(self, values: Sequence[int]) -> Pending:
        """Begin to sum small numbers over ranks, on the host; `result()` waits."""
        if self.world == 1:
            return _Known(list(values))
        tensor = torch.tensor(values, dtype=torch.int64)
        return _Reducing(tensor, dist.all_reduce(tensor, async_op=True))

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks of a tensor on the device, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def everyone(self, value: T) -> list[T]:
        """The value of each rank, on every rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values


@contextmanager
def start_ranks(wanted_device: str, timeout_s: float) -> Iterator[Ranks]:
    """Join the process group that torchrun or Slurm describes; a single process needs none.

    Collectives on the CPU go through Gloo, those on GPUs through NCCL. A group that the caller has
    made already is used and left alone.

    Args:
        wanted_device: as `RunConfig.device`; on several ranks each takes the GPU of its local rank.
        timeout_s: after which a rank is missed; the process group itself gives up later, without
            knowing whom to name.

    Raises:
        ConfigError: a device that is not here.
    """
    environment = RankEnvironment.read()
    world, local = environment.world, environment.local_rank
    device = pick_device(wanted_device)
    if dist.is_available() and dist.is_initialized():
        world = dist.get_world_size()
        if environment.world != world and device.type == "cuda":
            local = torch.cuda.current_device()  # as whoever made the group chose
    if world > 1 and device.type == "cuda":
        if wanted_device.startswith("cuda:"):
            raise ConfigError(
                f"--run.device {wanted_device} on {world} ranks: each takes a GPU of its own; "
                "leave it at auto"
            )
        # srun --gpus-per-task=1 lets each rank see its own GPU alone.
        alone = environment.launched_by == "slurm" and torch.cuda.device_count() == 1
        device = pick_device(f"cuda:{0 if alone else local}")
        torch.cuda.set_device(device)
    if world == 1:
        yield Ranks(0, 1, 1, device, environment.restarts > 0)
        return
    begun = not dist.is_initialized()
    if begun:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        limit_s = 2 * timeout_s + 60
        dist.init_process_group(
            backend, store=environment.open_store(f"group {next(_BEGUN)}", limit_s),
            rank=environment.rank, world_size=world, timeout=timedelta(seconds=limit_s),
        )  # fmt: skip
    yield Ranks(dist.get_rank(), world, environment.local_world, device, environment.restarts > 0)
    if begun:  # after an error others may wait in a collective, and ending the group would wait too
        dist.destroy_process_group()
