"""What the training loop costs a step beyond forward, backward and update, with spans on and off.

A linear classifier on batches that lie in memory, so that nothing but the loop is left. The bare
loop does the same arithmetic: the task's forward pass, backward pass, limit of the gradient norm,
update, gradients to None. "plain" is the shortest loop there is: cross-entropy, backward, update.
Arms take turns in one process; the overhead is the difference of medians over rounds.

    python benchmarks/loop_overhead.py --json benchmarks/results/loop_overhead.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from matinee.data.batch import Batch
from matinee.data.clips import ClipSpec
from matinee.data.epochs import EpochLoader
from matinee.measure.machine import describe
from matinee.models.base import Normalisation
from matinee.pack.images.image_set import ImageSet
from matinee.pack.images.writer import write_images
from matinee.spans import Spans
from matinee.tasks.classification import ClassificationTask
from matinee.tasks.vocabulary import Vocabulary
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from matinee.training.loop import run_loop
from matinee.training.optim.build import build_optimizer
from matinee.training.parallel.config import ParallelConfig
from matinee.training.parallel.ranks import Ranks
from matinee.training.parallel.wrap import wrap
from matinee.training.session import Session
from matinee.training.setup import Setup, Splits
from matinee.training.show.progress import Silent
from matinee.training.stages import Stage, Timeline
from matinee.training.state.runfolder import RunFolder
from matinee.training.state.train_state import TrainState
from matinee.training.step import StepRunner

CLIPS, CLASSES, SIDE = 8, 10, 8


class Memory(EpochLoader):
    """The same batch again and again."""

    workers, mode = 0, "memory"

    def __init__(self, pack: ImageSet, steps: int) -> None:
        super().__init__(
            pack, split=None, clip=ClipSpec(frames=1, size=16), batch_size=CLIPS, views=None,
            repeats=steps * CLIPS // len(pack), group=1, seed=0, classes=None, targets=None,
            device="cpu",
        )  # fmt: skip
        self.batch = make_batch()

    def _next(self) -> Batch:
        return self.batch

    def close(self) -> None:
        pass


def make_batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    return Batch(
        video=torch.randn(CLIPS, 3, 1, SIDE, SIDE, generator=generator),
        target=torch.arange(CLIPS) % CLASSES, valid=torch.ones(CLIPS, dtype=torch.bool),
        index=torch.arange(CLIPS), samples=tuple(map(str, range(CLIPS))), num_valid=CLIPS,
        texts=("",) * CLIPS, seeds=torch.arange(CLIPS),
    )  # fmt: skip


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, CLASSES))


def bare(steps: int, config: TrainConfig) -> float:
    """Microseconds a step of a loop without any service."""
    task, batch = ClassificationTask(network()), make_batch()
    optimizer = build_optimizer(task.model, config.optim)
    parameters = list(task.parameters())
    assert config.optim.clip_norm is not None
    begin = time.perf_counter()
    for _ in range(steps):
        (task(batch).loss / CLIPS).backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.optim.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return (time.perf_counter() - begin) / steps * 1e6


def plain(steps: int, config: TrainConfig) -> float:
    """Microseconds a step without the task's metrics and without a limit of the gradient."""
    net, batch = network(), make_batch()
    optimizer = build_optimizer(net, config.optim)
    begin = time.perf_counter()
    for _ in range(steps):
        F.cross_entropy(net(batch.video), batch.target).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return (time.perf_counter() - begin) / steps * 1e6


def looped(steps: int, config: TrainConfig, pack: ImageSet, *, spans: bool) -> float:
    """Microseconds a step of the real loop, between its first and its last step."""
    alone = Ranks(0, 1, 1, torch.device("cpu"))
    task, loader = ClassificationTask(network()), Memory(pack, steps)
    setup = Setup(
        config, pack, Splits(None, None, ""), Vocabulary(pack.classes), np.zeros(len(pack)), task,
        Normalisation((0.5,) * 3, (0.5,) * 3), alone, (),
    )  # fmt: skip
    optimizer = build_optimizer(task.model, config.optim)
    runner = StepRunner(
        task, optimizer, wrap(task, ParallelConfig(), alone, parts=1, bf16=False), alone, parts=1,
        seed=0, clip_norm=config.optim.clip_norm, spans=Spans(on=spans),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as out:
        folder = RunFolder(Path(out) / "run")
        folder.create(config)
        times = Times()
        session = Session(
            config, alone, setup, folder, Timeline((Stage(1, 1, SIDE, CLIPS),), steps * CLIPS),
            TrainState(task.model, optimizer, runner.scaler, loader), runner, times, "fp32", 1, (),
        )  # fmt: skip
        with session:
            run_loop(session)
    return (times.last - times.first) / (steps - 1) * 1e6


class Times(Silent):
    """When the first and the last step ended; what comes after is saving."""

    first = last = 0.0

    def step(self, step: int) -> None:
        self.last = time.perf_counter()
        self.first = self.first or self.last


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000, help="of each round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pack = small_images(Path(folder))
        arms: dict[str, list[float]] = {"plain": [], "bare": [], "spans on": [], "spans off": []}
        for number in range(options.rounds):
            config = settings(folder, number)
            arms["plain"].append(plain(options.steps, config))
            arms["bare"].append(bare(options.steps, config))
            for name in ("spans on", "spans off"):
                us = looped(options.steps, config, pack, spans=name == "spans on")
                arms[name].append(us)
            print(f"round {number + 1}: " + ", ".join(f"{n} {v[-1]:.0f}" for n, v in arms.items()))
    medians = {name: statistics.median(values) for name, values in arms.items()}
    result = {
        "machine": describe("torch", "numpy"), "steps": options.steps, "rounds": options.rounds,
        "us_per_step": medians, "all": arms,
        "overhead_us": {
            name: medians[name] - medians["bare"] for name in ("spans on", "spans off")
        },
    }  # fmt: skip
    print(json.dumps({k: result[k] for k in ("us_per_step", "overhead_us")}, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def settings(folder: str, number: int) -> TrainConfig:
    """SGD with momentum and a limit of the gradient norm; a log line every 50 steps."""
    return TrainConfig(
        data=DataConfig(path=folder), run=RunConfig(out=f"{folder}/{number}", log_every=50),
        optim=OptimConfig(name="sgd", lr=0.01, batch_size=CLIPS, epochs=1, clip_norm=20.0),
    )  # fmt: skip


def small_images(folder: Path) -> ImageSet:
    """Eight pictures, for a data set that says how many items there are."""
    from PIL import Image

    for number in range(8):
        picture = folder / "pictures" / "ab"[number % 2] / f"{number}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), number, np.uint8)).save(picture)
    write_images(folder / "set.images", folder / "pictures", val_fraction=0)
    return ImageSet(folder / "set.images")


if __name__ == "__main__":
    main()
