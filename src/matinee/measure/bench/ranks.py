"""Processes that meet in process groups of several sizes and do as they are told.

# Note [Groups of ranks]
To let 1, 2 and 4 ranks take turns, all of them are started once; each smaller number is a process
group of the first ranks. Ranks outside the group of a turn wait for their next job without using a
core. See Note [Interleaving].
"""

from __future__ import annotations

import atexit
import importlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]

from matinee.errors import ConfigError, MatineeError
from matinee.workers import WorkerPool

_LOOK_S = 0.02
_LIMIT = timedelta(minutes=10)


@dataclass(frozen=True)
class Place:
    """Where one rank stands in a turn. `group` is None for a single one."""

    rank: int
    world: int
    device: torch.device
    group: Any


class Part(Protocol):
    """What every rank holds: made as `Class(*args)`, then called in each turn it takes part in."""

    def __call__(self, place: Place, payload: Any) -> Any: ...


def check_ranks(ranks: Sequence[int], device: torch.device, *, least: int = 1) -> None:
    """Refuse numbers of ranks that cannot run here.

    Raises:
        ConfigError: none, too few, or more than there are GPUs.
    """
    if not ranks or min(ranks) < least or len(set(ranks)) < len(ranks):
        given = " ".join(map(str, ranks))
        raise ConfigError(f"--ranks {given}: different numbers, each at least {least}")
    if device.type == "cuda" and max(ranks) > torch.cuda.device_count():
        raise ConfigError(
            f"--ranks {max(ranks)}: there are {torch.cuda.device_count()} GPUs, and each rank "
            "takes one; --device cpu measures ranks on the processor"
        )


def backend_of(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


class RankGroup:
    """The ranks of one machine. See Note [Groups of ranks].

    Args:
        worlds: how many ranks may take a turn together.
        target: "package.module:Class" of a `Part`.
        args: picklable arguments of it.
        threads: that torch computes with on each rank.

    Raises:
        MatineeError: a rank could not be started.
    """

    def __init__(
        self,
        worlds: Sequence[int],
        target: str,
        args: tuple[Any, ...] = (),
        *,
        device: torch.device,
        threads: int = 1,
    ) -> None:
        most = max(worlds)
        self._folder = tempfile.TemporaryDirectory(prefix="matinee-ranks-")
        meeting = str(Path(self._folder.name) / "meeting")
        self._pools: list[WorkerPool] = []
        try:
            for rank in range(most):
                setup = (rank, tuple(sorted(worlds)), meeting, device.type, threads, target, args)
                self._pools.append(
                    WorkerPool(
                        1, "matinee.measure.bench.ranks:_Rank", setup,
                        environment={"OMP_NUM_THREADS": str(threads)},
                    )
                )  # fmt: skip
            self._all(range(most), None)
        except BaseException:
            self.close()
            raise

    def __call__(self, world: int, payload: Any) -> list[Any]:
        """Let the first `world` ranks do a job; what each returned.

        Raises:
            MatineeError: a rank failed or died.
        """
        return self._all(range(world), (world, payload))

    def _all(self, ranks: range, job: Any) -> list[Any]:
        for rank in ranks:
            self._pools[rank].submit(0, job)
        values: dict[int, Any] = {}
        while len(values) < len(ranks):
            for rank in ranks:
                if rank in values:
                    continue
                for result in self._pools[rank].results(_LOOK_S):
                    if result.died:
                        raise MatineeError(f"rank {rank} of {len(ranks)} ended: {result.died}")
                    if result.error is not None:
                        result.error.add_note(result.trace)
                        raise result.error
                    values[rank] = result.value
        return [values[rank] for rank in ranks]

    def close(self) -> None:
        """End the ranks."""
        for pool in self._pools:
            pool.close()
        self._folder.cleanup()

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Rank:
    """One of them, in its process."""

    def __init__(
        self,
        rank: int,
        worlds: tuple[int, ...],
        meeting: str,
        kind: str,
        threads: int,
        target: str,
        args: tuple[Any, ...],
    ) -> None:
        self._rank, self._worlds, self._meeting = rank, worlds, meeting
        self._device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
        self._groups: dict[int, Any] = {}
        self._part: Part | None = None
        self._target, self._args = target, args
        torch.set_num_threads(threads)

    def __call__(self, job: tuple[int, Any] | None) -> Any:
        if job is None:
            return self._join()
        world, payload = job
        assert self._part is not None
        place = Place(self._rank, world, self._device, self._groups.get(world))
        return self._part(place, payload)

    def _join(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        most = self._worlds[-1]
        if most > 1:
            store = FileStore(self._meeting, most)
            dist.init_process_group(
                backend_of(self._device), store=store, rank=self._rank, world_size=most,
                timeout=_LIMIT,
            )  # fmt: skip
            atexit.register(dist.destroy_process_group)
            for world in self._worlds:
                if world > 1:
                    self._groups[world] = dist.new_group(list(range(world)))
        module, _, name = self._target.partition(":")
        self._part = getattr(importlib.import_module(module), name)(*self._args)
