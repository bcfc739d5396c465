"""Accuracy against the number of ranks, simulated on one by accumulation."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from matinee.demo.run import demo_config
from matinee.demo.shapes import CLASSES, write_shapes
from matinee.errors import ConfigError
from matinee.measure.draw.figures import Lines, Series
from matinee.measure.reproduce.kinetics15.options import Scale
from matinee.measure.result import Part, Table
from matinee.pack.annotations import read_table
from matinee.pack.profiles import make_profile
from matinee.pack.writing.writer import write_pack
from matinee.training.config import OptimConfig, TrainConfig
from matinee.training.loop import train
from matinee.training.show.progress import Silent

CLIPS = 8  # of a rank, as published
SEGMENTS = 32  # of a video: samples
WARM_UP = 5 / 16  # of the epochs
RATE = 0.05  # of one rank
BREAKS = 0.05  # lower top-1 than one rank's by more than this, in the mean of the seeds
LEARNED = 0.5  # what frames without their order allow: one rank that gets no further tells nothing

Tell = Callable[[float, str], None]


@dataclass(frozen=True)
class Run:
    """One run: `steps` updates of `world` ranks' clips, and top-1 of clips not trained on."""

    world: int
    seed: int
    batch: int
    rate: float
    steps: int
    top1: float


def check_worlds(scale: Scale) -> None:
    """Refuse more ranks than a step of the small training set has clips for.

    Raises:
        ConfigError: such a number.
    """
    samples = scale.videos * SEGMENTS
    if max(scale.worlds) * CLIPS > samples:
        raise ConfigError(
            f"--worlds {max(scale.worlds)}: a step of {CLIPS} clips a rank is more than the "
            f"{samples} clips there are to train on; at most {samples // CLIPS}"
        )


def measure_accuracy(scale: Scale, tell: Tell) -> list[Run]:
    """Write and pack moving shapes, then train for each number of ranks and seed.

    Raises:
        MatineeError: a loss is not finite.
        KeyboardInterrupt: a run was stopped by a signal.
    """
    plan = [(world, seed) for world in scale.worlds for seed in range(scale.seeds)]
    runs = []
    with tempfile.TemporaryDirectory(prefix="matinee-kinetics15-") as folder:
        pack = _make_pack(Path(folder), scale, lambda part, note: tell(0.1 * part, note))
        for number, (world, seed) in enumerate(plan):
            note = f"{world} simulated rank{'s' * (world > 1)}, seed {seed}"

            def done(part: float, number: int = number, note: str = note) -> None:
                tell(0.1 + 0.9 * (number + part) / len(plan), note)

            config = world_config(
                str(pack), str(Path(folder) / f"{world}-{seed}"), world=world, seed=seed,
                epochs=scale.epochs,
            )  # fmt: skip
            result = train(config, progress=_Parts(done))
            if result.val is None:  # stopped before its end
                raise KeyboardInterrupt(result.stopped)
            rate = config.optim.lr * world
            runs.append(
                Run(world, seed, config.optim.batch_size, rate, result.steps, result.val["top1"])
            )
    return runs


def world_config(data: str, out: str, *, world: int, seed: int, epochs: int) -> TrainConfig:
    """A small TSM as `world` ranks train it: SGD, the rate growing with the batch, warming up."""
    config = demo_config(data, out, shift=True, seed=seed, epochs=epochs)
    return replace(
        config,
        data=replace(config.data, workers=1),
        run=replace(config.run, eval_every=epochs, log_every=1000, keep=1),
        model=replace(config.model, backbone="test_resnet"),
        optim=OptimConfig(
            name="sgd", lr=RATE, base_batch=CLIPS, batch_size=CLIPS * world, epochs=epochs,
            warmup_epochs=WARM_UP * epochs, weight_decay=1e-4,
        ),
        parallel=replace(config.parallel, simulate_world=world),
    )  # fmt: skip


def _make_pack(folder: Path, scale: Scale, tell: Tell) -> Path:
    labels = write_shapes(
        folder / "shapes", train_videos=scale.videos, test_videos=max(1, scale.videos // 2),
        segments_per_video=SEGMENTS, size=(48, 48),
        on_progress=lambda done, all_: tell(0.6 * done / all_, "writing moving shapes"),
    )  # fmt: skip
    write_pack(
        folder / "pack", read_table(labels, folder / "shapes"), make_profile("layered"),
        on_progress=lambda p: tell(0.6 + 0.4 * p.videos / max(p.all_videos, 1), "packing them"),
    )  # fmt: skip
    return folder / "pack"


class _Parts(Silent):
    """Tells which part of a run is done."""

    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell, self._total = tell, 1

    def start(
        self, *, total: int, facts: list[str], headline: str, epochs: int | None = None
    ) -> None:
        self._total = max(total, 1)

    def step(self, step: int) -> None:
        self._tell(step / self._total)


def breaking_point(runs: list[Run]) -> int | None:
    """The least number of ranks from which on top-1 stays below one rank's by more than `BREAKS`;
    None where even the most hold, or one rank itself did not learn.
    """
    means = _means(runs)
    alone = means[min(means)]
    if alone <= LEARNED:
        return None
    broken: int | None = None
    for world in sorted(means, reverse=True):
        if alone - means[world] <= BREAKS:
            break
        broken = world
    return broken


def accuracy_part(runs: list[Run], scale: Scale) -> tuple[Part, dict[str, Any]]:
    """The part of the page, and its numbers."""
    means, broken = _means(runs), breaking_point(runs)
    text = (
        f"A small TSM on {scale.videos * SEGMENTS} clips of moving shapes in {len(CLASSES)} "
        f"classes, {scale.epochs} epochs each, {CLIPS} clips a rank, SGD; the learning rate is "
        f"{RATE:g} for one rank, grows with the batch and warms up for "
        f"{WARM_UP * scale.epochs:.3g} epochs (arXiv 1706.02677). `--simulate-world` does the "
        "updates of so many ranks on this one: each step accumulates their micro-batches, each "
        "normalised on its own.\n\n"
    )
    most = max(means)
    if means[1] <= LEARNED:
        text += (
            f"With {100 * means[1]:.0f} % one rank itself has not learned what the order of frames "
            "tells, so more ranks have nothing to lose: give more --epochs."
        )
    elif broken is None:
        text += f"Up to {most} ranks top-1 stays within {100 * BREAKS:.0f} points of one rank's."
    else:
        steps = next(r.steps for r in runs if r.world == broken)
        text += (
            f"At {broken} ranks ({broken * CLIPS} clips a step, {steps} steps in all) accuracy "
            f"breaks: {100 * means[broken]:.0f} % against {100 * means[1]:.0f} % of one rank."
        )
    text += (
        " Where that happens depends on the data: Kinetics has 240,000 clips, of which 1,536 ranks "
        "still make about 20 steps an epoch, 2,000 in all; published top-1 there is 74.0 %. Chance "
        f"is {100 / len(CLASSES):.1f} %; a network that cannot see the order of frames gets 50 %."
    )
    return (
        Part("accuracy", "Accuracy against ranks", text, [_table(runs)], {"top1": _plot(runs)}),
        {
            "runs": [vars(run) for run in runs], "mean_top1": means, "breaks_at": broken,
            "breaks_below": BREAKS, "learned": means[1] > LEARNED, "clips_a_rank": CLIPS,
            "chance": 1 / len(CLASSES),
        },
    )  # fmt: skip


def _table(runs: list[Run]) -> Table:
    rows = []
    for world, mean in _means(runs).items():
        own = [run for run in runs if run.world == world]
        rows.append([
            f"{world}", f"{own[0].batch}", f"{own[0].rate:g}", f"{own[0].steps}",
            f"{100 * mean:.1f} %", ", ".join(f"{100 * run.top1:.1f}" for run in own),
        ])  # fmt: skip
    columns = ["simulated ranks", "clips a step", "peak rate", "steps", "top-1", "by seed"]
    return Table(columns, rows, "", "Top-1 of videos that were not trained on, one view each.")


def _plot(runs: list[Run]) -> Lines:
    means = _means(runs)
    by_world = {w: [100 * run.top1 for run in runs if run.world == w] for w in means}
    worlds = list(means)
    series = [
        Series(
            "top-1, mean of seeds", worlds, [100 * m for m in means.values()],
            [min(by_world[w]) for w in worlds], [max(by_world[w]) for w in worlds],
        ),
        Series("chance", worlds, [100 / len(CLASSES)] * len(worlds), style="dashed"),
    ]  # fmt: skip
    about = "Top-1 of held-out clips against simulated ranks; the band spans the seeds."
    return Lines(about, "simulated ranks", "top-1, %", series, x_log=True, x_ticks=worlds)


def _means(runs: list[Run]) -> dict[int, float]:
    worlds = sorted({run.world for run in runs})
    return {w: float(np.mean([run.top1 for run in runs if run.world == w])) for w in worlds}
