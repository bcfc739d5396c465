"""Training speed of several ranks, what communication takes of a step, and how steps vary."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from matinee.errors import ConfigError
from matinee.measure.arms import Spread, Turns, take_turns
from matinee.measure.bench.networks import Clips, TrainingStep, build, gradient_bytes, place
from matinee.measure.bench.ranks import Place, RankGroup, backend_of, check_ranks
from matinee.measure.draw.figures import Bars, Lines, Series
from matinee.measure.result import Part, Result, Table
from matinee.training.parallel.config import ParallelConfig
from matinee.training.parallel.hooks import add_hook
from matinee.training.parallel.wrap import own_buffers
from matinee.training.precision import pick_device

Hook = Literal["none", "bf16", "fp16"]


@dataclass(frozen=True)
class Options:
    """Real ranks that train one network on clips of noise by DistributedDataParallel: Gloo on a
    CPU, NCCL where there are GPUs. Every number of ranks takes turns, with gradients averaged and
    without: the difference is what communication takes that computing does not hide. The batch of
    a rank stays the same. scaling.json keeps the time of each step on each rank, from which
    `matinee plan` takes how much ranks wait for the slowest.
    """

    out: Path = Path("bench/scaling")
    """Folder for scaling.json, plots and page."""
    ranks: tuple[int, ...] = (1, 2, 4)
    """How many processes train; with GPUs each takes one. 1 is always measured."""
    network: str | None = None
    """As `matinee bench models` names them: tsm, vit_s, …, or BACKBONE:WAY. Default:
    resnet18:shift."""
    frames: int | None = None
    """Frames of a clip. Default: 8."""
    size: int | None = None
    """Height and width in pixels. Default: 64."""
    batch: int | None = None
    """Clips a step on each rank. Default: 1."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of the forward pass; bf16 by autocast."""
    hook: Hook = "none"
    """Send gradients as bf16 or fp16."""
    steps: int = 3
    """Steps of a turn."""
    rounds: int = 5
    """Turns of each arm that count, after one that warms up."""
    threads: int = 1
    """CPU threads that torch computes with on each rank."""
    device: str = "auto"
    """auto, cpu or cuda."""
    full: bool = False
    """TSM's ResNet-50 at 224², 8 clips a rank on GPUs (1 on a CPU), as 1910.00932 scales it."""

    def __post_init__(self) -> None:
        for name in ("steps", "rounds", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: at least 1")
        given = {name: getattr(self, name) for name in ("network", "frames", "size", "batch")}
        given = {name: value for name, value in given.items() if value is not None}
        if self.full and given:
            told = " ".join(f"--{name} {value}" for name, value in given.items())
            raise ConfigError(f"--full says what is trained, and {told} another: choose one")
        self.work(torch.device("cpu"))

    def work(self, device: torch.device) -> tuple[str, Clips]:
        """Network and clips."""
        if self.full:
            return "tsm", Clips(8 if device.type == "cuda" else 1, 8, 224)
        batch, frames, size = (
            start if value is None else value
            for value, start in ((self.batch, 1), (self.frames, 8), (self.size, 64))
        )
        network = "resnet18:shift" if self.network is None else self.network
        return network, Clips(batch, frames, size)


def measure(options: Options, *, on_step: Callable[[int, int, str], None]) -> Result:
    """Start the ranks and let each number of them take turns.

    Raises:
        ConfigError: numbers of ranks that cannot run here, an unknown network.
        MatineeError: a rank failed.
    """
    device = pick_device(options.device.partition(":")[0])
    check_ranks(options.ranks, device)
    worlds = tuple(sorted({1, *options.ranks}))
    network, clips = options.work(device)
    gradients = gradient_bytes(build(network, frames=clips.frames, size=clips.size))
    steps: dict[str, list[list[list[float]]]] = {}  # of an arm: [turn][rank][step]
    args = (network, clips, options.precision, options.hook)
    on_step(0, 1, f"starting {worlds[-1]} ranks")
    with RankGroup(
        worlds, f"{__name__}:Train", args, device=device, threads=options.threads
    ) as group:

        def arm(world: int, joined: bool) -> Callable[[], float]:
            def turn() -> float:
                ranks = group(world, (joined, options.steps))
                steps.setdefault(_name(world, joined), []).append(ranks)
                return max(float(np.mean(rank)) for rank in ranks)

            return turn

        arms = {
            _name(world, joined): arm(world, joined)
            for world in worlds for joined in ((True, False) if world > 1 else (False,))
        }  # fmt: skip
        turns = take_turns(
            arms, options.rounds, on_turn=lambda done, all_: on_step(done, all_, "turns")
        )
    kept = {name: _joined_turns(values[1:]) for name, values in steps.items()}  # after warming up
    cores = len(os.sched_getaffinity(0)) if device.type == "cpu" else worlds[-1] * options.threads
    return _result(Scaled(options, network, clips, device, worlds, cores, gradients, turns, kept))


def _name(world: int, joined: bool) -> str:
    return f"{world}{' joined' if joined else ' apart'}"


def _joined_turns(turns: list[list[list[float]]]) -> list[list[float]]:
    """Of each rank its steps, turn after turn."""
    return [[s for turn in turns for s in turn[rank]] for rank in range(len(turns[0]))]


class Train:
    """A rank's part: steps of one network, with gradients averaged or not."""

    def __init__(self, network: str, clips: Clips, precision: str, hook: Hook) -> None:
        self._network, self._clips, self._precision, self._hook = network, clips, precision, hook
        self._steps: dict[int, tuple[TrainingStep, Any]] = {}  # by number of ranks

    def __call__(self, place_: Place, payload: tuple[bool, int]) -> list[float]:
        """Seconds of some steps: payload is (averaged, how many)."""
        joined, count = payload
        if place_.world not in self._steps:
            self._steps[place_.world] = self._make(place_)
        step, parallel = self._steps[place_.world]
        if place_.world > 1:
            dist.barrier(group=place_.group)
        apart = parallel is not None and not joined
        return [step(parallel.no_sync() if apart else nullcontext()) for _ in range(count)]

    def _make(self, place_: Place) -> tuple[TrainingStep, Any]:
        model = build(self._network, frames=self._clips.frames, size=self._clips.size)
        place(model, place_.device)
        parallel = None
        if place_.world > 1:
            parallel = DistributedDataParallel(
                model, process_group=place_.group, gradient_as_bucket_view=True,
                bucket_cap_mb=ParallelConfig().bucket_mb, **own_buffers(),
            )  # fmt: skip
            add_hook(parallel, ParallelConfig(hook=self._hook))
        step = TrainingStep(
            model, self._clips, place_.device, precision=self._precision, compute=parallel
        )
        return step, parallel


@dataclass(frozen=True)
class Scaled:
    """What was measured. `steps[arm][rank]`: seconds of each step."""

    options: Options
    network: str
    clips: Clips
    device: torch.device
    worlds: tuple[int, ...]
    cores: int
    gradients: int
    turns: Turns
    steps: dict[str, list[list[float]]]

    def crowded(self, world: int) -> bool:
        """Whether ranks share cores."""
        return world * self.options.threads > self.cores

    def _arm(self, world: int) -> str:
        return _name(world, joined=world > 1)

    def speed(self, world: int) -> Spread:
        """Clips a second of all ranks."""
        seconds = self.turns.values[self._arm(world)]
        return Spread.of([world * self.clips.batch / s for s in seconds])

    def efficiency(self, world: int) -> Spread:
        """Against as many times the speed of one rank."""
        return self.turns.ratio(self._arm(1), self._arm(world))

    def core_efficiency(self, world: int) -> Spread:
        """Against as many times the speed of one rank as there are cores for ranks."""
        threads = self.options.threads
        room = min(world, max(1.0, self.cores / threads))
        spread = self.efficiency(world)
        by = world / room
        return Spread(by * spread.median, by * spread.low, by * spread.high, spread.count)

    def communication(self, world: int) -> Spread:
        """Share of a step that averaging gradients adds."""
        pairs = zip(
            self.turns.values[_name(world, True)], self.turns.values[_name(world, False)],
            strict=True,
        )  # fmt: skip
        return Spread.of([1 - apart / joined for joined, apart in pairs])

    def waiting(self, world: int) -> float:
        """By how much the slowest rank's step is longer than the mean one's, computing alone."""
        steps = np.array(self.steps[_name(world, False)])
        return float(steps.max(axis=0).mean() / steps.mean() - 1)


def _result(found: Scaled) -> Result:
    shared = found.device.type == "cpu"
    crowded = [w for w in found.worlds if found.crowded(w)]
    text = (
        f"{found.network}, {found.clips} a rank, {found.gradients / 1e6:.1f} MB of gradients, "
        f"{backend_of(found.device)}."
    )
    if shared:
        text += (
            f" All ranks run on the {found.cores} cores of this machine, with "
            f"{found.options.threads} of torch's threads each, and share its memory and its "
            "loopback network"
        )  # fmt: skip
        text += (
            f"; {' and '.join(map(str, crowded))} ranks are more than it has cores for, so their "
            "efficiency against ranks says nothing about machines of their own: look at the one "
            "against cores."
            if crowded
            else "."
        )
    part = Part(
        "scaling", "Scaling", text, [_table(found), _step_table(found)],
        {"speed": _speed_plot(found), "steps": _step_bars(found)},
    )  # fmt: skip
    title = "Training speed of several ranks"
    return Result("scaling", title, "The batch of a rank is the same.", [part], _data(found))


def _table(found: Scaled) -> Table:
    columns = ["ranks", "clips/s", "efficiency", "against cores", "communication"]
    rows = []
    for w in found.worlds:
        row = [f"{w}", str(found.speed(w))]
        row += [str(found.efficiency(w)), str(found.core_efficiency(w))] if w > 1 else ["1", "1"]
        row.append(f"{_percent(found.communication(w))} of a step" if w > 1 else "none")
        rows.append(row)
    note = (
        "Medians with quartiles. Efficiency: speed over that of one rank times ranks (or times the "
        "ranks that cores suffice for). Communication: what averaging gradients adds to a step; "
        "below zero it is lost in the noise."
    )
    return Table(columns, rows, "", note)


def _step_table(found: Scaled) -> Table:
    rows = []
    for w in found.worlds:
        for rank, steps in enumerate(found.steps[_name(w, False)]):
            p50, p90, p99 = np.percentile(steps, (50, 90, 99))
            rows.append([
                f"{rank} of {w}", f"{1e3 * p50:.4g}", f"{1e3 * p90:.4g}", f"{1e3 * p99:.4g}",
                f"{100 * np.std(steps) / np.mean(steps):.0f} %",
                f"{100 * found.waiting(w):.0f} %" if rank == 0 and w > 1 else "",
            ])  # fmt: skip
    columns = ["rank", "p50 ms", "p90 ms", "p99 ms", "deviation", "slowest over mean"]
    note = (
        f"{len(found.steps[_name(1, False)][0])} steps of each rank without communication. Slowest "
        "over mean: what waiting for the slowest rank adds to each step."
    )
    return Table(columns, rows, "Steps of each rank", note)


def _percent(spread: Spread) -> str:
    low, mid, high = (f"{100 * v:.0f}" for v in (spread.low, spread.median, spread.high))
    return f"{mid} % ({low} to {high})"


def _speed_plot(found: Scaled) -> Lines:
    speeds = [found.speed(w) for w in found.worlds]
    ideal = [w * speeds[0].median for w in found.worlds]
    series = [
        Series(
            "measured", found.worlds, [s.median for s in speeds], [s.low for s in speeds],
            [s.high for s in speeds],
        ),
        Series("as many times one rank", found.worlds, ideal, style="dashed"),
    ]  # fmt: skip
    about = "Clips a second against ranks, beside as many times the speed of one rank."
    return Lines(about, "ranks", "clips a second", series, x_ticks=found.worlds)


def _step_bars(found: Scaled) -> Bars:
    """Time of a step by ranks, with communication and without."""
    names = [f"{w} rank{'s' * (w > 1)}" for w in found.worlds]
    series = []
    for joined, name in ((True, "with communication"), (False, "without")):
        spreads = [
            found.turns.spread(_name(w, joined)) if w > 1 or not joined else None
            for w in found.worlds
        ]
        series.append(
            Series(
                name, [], [1e3 * s.median if s else None for s in spreads],
                [1e3 * s.low if s else 0.0 for s in spreads],
                [1e3 * s.high if s else 0.0 for s in spreads],
            )
        )  # fmt: skip
    about = "Milliseconds of a step by number of ranks, with gradients averaged and without."
    return Bars(about, names, "a step, ms", series)


def _data(found: Scaled) -> dict[str, Any]:
    options = found.options
    return {
        "network": found.network, "backend": backend_of(found.device),
        "device": found.device.type, "cores": found.cores, "threads": options.threads,
        "precision": options.precision, "hook": options.hook, "gradient_bytes": found.gradients,
        "clip": {"frames": found.clips.frames, "size": found.clips.size},
        "batch_per_rank": found.clips.batch,
        "measured": [
            {
                "ranks": w, "clips_per_s": found.speed(w).to_dict(),
                "step_s": found.turns.spread(_name(w, w > 1)).to_dict(),
                "efficiency": found.efficiency(w).to_dict(),
                "efficiency_against_cores": found.core_efficiency(w).to_dict(),
                "communication_share": found.communication(w).to_dict() if w > 1 else None,
                "slowest_over_mean": found.waiting(w), "crowded": found.crowded(w),
                # Of each rank, in order: what a rank needs alone, and with the others.
                "compute_step_seconds": found.steps[_name(w, False)],
                "step_seconds": found.steps[_name(w, True)] if w > 1 else None,
            }
            for w in found.worlds
        ],
    }  # fmt: skip
