"""A step of one process, for tests of what tasks do with it."""

from contextlib import nullcontext

import torch

from matinee.spans import Spans
from matinee.tasks.base import Step


def plain_step(compute, *, clips=1, parts=1, world=1, next_batch=None, **more) -> Step:
    return Step(
        **{
            "clips": clips, "parts": parts, "world": world, "next_batch": next_batch,
            "reseed": torch.manual_seed, "compute": compute, "part": lambda number: nullcontext(),
            "scaled": lambda loss: loss, "autocast": nullcontext, "spans": Spans(), **more,
        }
    )  # fmt: skip
