"""The whole in minutes: write videos, pack, train TSM and the same without shift, report."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matinee.data.clips import ClipSpec
from matinee.demo.shapes import CLASSES, PAIRS, write_shapes
from matinee.demo.view import DemoView, fresh_folder
from matinee.inference.evaluate import evaluate
from matinee.measure.report.write import write_report
from matinee.measure.sheet import contact_sheet
from matinee.models.config import Frames, ModelConfig, Shift
from matinee.pack.annotations import read_table
from matinee.pack.profiles import make_profile
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.writer import write_pack
from matinee.spans import Spans
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from matinee.training.loop import train

_OURS = ("shapes", "shapes.pack", "tsm", "tsn", "report.html", "result.json", "sheet.png")


@dataclass(frozen=True)
class DemoSize:
    """How much of everything. `segments` a video, each a sample of 2–3 s."""

    train_videos: int = 16
    test_videos: int = 6
    segments: int = 24
    epochs: int = 10


def demo_config(data: str, out: str, *, shift: bool, seed: int, epochs: int) -> TrainConfig:
    """A ResNet-10 on 8 frames of 32², from scratch; no flips, for directions are the classes."""
    return TrainConfig(
        data=DataConfig(path=data, train_split="train", val_split="test"),
        run=RunConfig(out=out, seed=seed, eval_every=2, log_every=8),
        model=ModelConfig(
            backbone="resnet10t", temporal=Shift() if shift else Frames(), dropout=0.0
        ),
        clip=ClipSpec(
            frames=8, size=32, crop="random-resized", scale=(0.7, 1.0), ratio=(1.0, 1.0),
            center_scale=1.0,
        ),
        optim=OptimConfig(
            name="adamw", lr=2e-3, batch_size=16, epochs=epochs, warmup_epochs=0.2 * epochs,
            weight_decay=0.05, clip_norm=None,
        ),
    )  # fmt: skip


def run_demo(
    out: Path, view: DemoView, *, seed: int = 0, size: DemoSize | None = None
) -> dict[str, Any]:
    """Run the demo into the folder `out`; returns what result.json holds.

    `chance` is one half: the classes come in pairs that are each other's time reversal, so frames
    without their order tell the pair and not which of the two. `<run>_pair_top1` is how often the
    pair was right.

    Raises:
        ConfigError: `out` holds something that is not a demo.
    """
    size = size or DemoSize()
    begin = time.perf_counter()
    fresh_folder(out, _OURS)
    timed = Spans()
    minutes = size.segments * (size.train_videos + size.test_videos) * 2.5 / 60
    view.say(
        f"1  writing {size.train_videos + size.test_videos} videos (about {minutes:.0f} minutes): "
        f"moving shapes in {len(CLASSES)} classes; each pair is the same but for the order of time"
    )
    with view.counting("writing", "videos") as step, timed("write"):
        labels = write_shapes(
            out / "shapes", seed=seed, train_videos=size.train_videos,
            test_videos=size.test_videos, segments_per_video=size.segments, on_progress=step,
        )  # fmt: skip
    view.say("2  packing them: temporal layers, so that clips decode only the frames they use")
    with view.counting("packing", "videos") as step, timed("pack"):
        packed = write_pack(
            out / "shapes.pack", read_table(labels, out / "shapes"), make_profile("layered"),
            on_progress=lambda p: step(p.videos, p.all_videos),
        )  # fmt: skip
        contact_sheet(Pack(out / "shapes.pack"), out / "sheet.png", rows=len(CLASSES))
    view.say(
        f"   {packed.samples} samples of {packed.videos} videos, {packed.bytes / 1e6:.1f} MB; "
        "a look at them: sheet.png"
    )
    results = {}
    for number, (name, what) in enumerate(
        (("tsm", "a network with temporal shift (TSM)"), ("tsn", "the same without the shift")), 3
    ):
        view.say(f"{number}  training {what}")
        config = demo_config(
            str(out / "shapes.pack"), str(out / name), shift=name == "tsm", seed=seed,
            epochs=size.epochs,
        )  # fmt: skip
        with timed(f"train_{name}"):
            train(config, progress=view.training(name))
        with view.counting("evaluating", "clips") as step, timed(f"eval_{name}"):
            results[name] = evaluate(out / name, views=(2, 1), on_progress=step)
        view.say(f"   held-out videos: top-1 {results[name]['top1']:.3f}")
    with timed("report"):
        write_report(
            out / "report.html",
            [out / "tsm", out / "tsn"],
            title="Does the order of frames matter?",
            intro=(
                "Videos of moving shapes, in classes that come in pairs: the two of a pair are "
                "each other played backwards. Two networks saw the same frames. tsm shifts an "
                "eighth of its features along time in each direction; tsn is the same network "
                "without the shift, so it cannot tell the two of a pair apart."
            ),
        )
    result = {
        "tsm_top1": results["tsm"]["top1"],
        "tsn_top1": results["tsn"]["top1"],
        "chance": 1 / len(PAIRS[0]),
        "tsm_pair_top1": pair_accuracy(results["tsm"]["predictions"]),
        "tsn_pair_top1": pair_accuracy(results["tsn"]["predictions"]),
        "classes": list(CLASSES),
        "test_samples": results["tsm"]["samples"],
        "seed": seed,
        "seconds": time.perf_counter() - begin,
        "seconds_of": timed.take(),
    }
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


def pair_accuracy(predictions: list[dict[str, Any]]) -> float:
    """How often the predicted class is the true one or its time reversal."""
    pair_of = {name: pair for pair in PAIRS for name in pair}
    hits = [pair_of[row["label"]] == pair_of[row["predicted"]] for row in predictions]
    return sum(hits) / len(hits)
