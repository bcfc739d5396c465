"""Captions to clips: train a dual encoder, then ask for combinations it never saw together."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matinee.data.clips import ClipSpec
from matinee.demo.combinations import write_combinations
from matinee.demo.view import DemoView, fresh_folder
from matinee.inference.evaluate import evaluate
from matinee.measure.report.write import write_report
from matinee.models.config import ModelConfig, Shift
from matinee.pack.annotations import read_table
from matinee.pack.profiles import make_profile
from matinee.pack.writing.writer import write_pack
from matinee.tasks.config import ClipTextConfig, ContrastiveConfig
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from matinee.training.loop import train

_OURS = ("clips", "clips.pack", "run", "report.html", "result.json")


@dataclass(frozen=True)
class RetrievalSize:
    """How much of everything: `copies` clips of each training combination."""

    copies: int = 6
    held_out: int = 64
    epochs: int = 30


def retrieval_config(data: str, out: str, *, seed: int, epochs: int) -> TrainConfig:
    """A small TSM and a small text transformer, both from scratch."""
    return TrainConfig(
        data=DataConfig(path=data, train_split="train", val_split="test"),
        run=RunConfig(out=out, seed=seed, eval_every=5),
        model=ModelConfig(backbone="resnet10t", temporal=Shift(), dropout=0.0),
        task=ContrastiveConfig(text=ClipTextConfig(width=128, heads=4, layers=2), embed_dim=128),
        clip=ClipSpec(frames=8, size=32, scale=(0.8, 1.0), ratio=(1.0, 1.0), center_scale=1.0),
        optim=OptimConfig(
            name="adamw", lr=2e-3, batch_size=64, epochs=epochs, warmup_epochs=0.1 * epochs,
            weight_decay=0.05, clip_norm=1.0,
        ),
    )  # fmt: skip


def run_retrieval_demo(
    out: Path, view: DemoView, *, seed: int = 0, size: RetrievalSize | None = None
) -> dict[str, Any]:
    """Run the demo into the folder `out`; returns what result.json holds.

    `t2v_r1` is over the held-out combinations, one clip each: `candidates` of them, `chance` one of
    these.

    Raises:
        ConfigError: `out` holds something that is not this demo.
    """
    size = size or RetrievalSize()
    begin = time.perf_counter()
    fresh_folder(out, _OURS)
    view.say("1  writing captioned clips: a red circle moves from left to right, …")
    with view.counting("writing", "videos") as step:
        labels = write_combinations(
            out / "clips", copies=size.copies, held_out=size.held_out, seed=seed, on_progress=step
        )
    view.say("2  packing them")
    with view.counting("packing", "videos") as step:
        packed = write_pack(
            out / "clips.pack", read_table(labels, out / "clips"), make_profile("layered"),
            on_progress=lambda p: step(p.videos, p.all_videos),
        )  # fmt: skip
    view.say(
        f"   {packed.samples} clips; {size.held_out} combinations of colour, shape and motion are "
        "held out: every word of theirs is trained on, never together"
    )
    view.say("3  training a video tower and a text tower, both from nothing")
    config = retrieval_config(
        str(out / "clips.pack"), str(out / "run"), seed=seed, epochs=size.epochs
    )
    train(config, progress=view.training("retrieval"))
    with view.counting("evaluating", "clips") as step:
        found = evaluate(out / "run", views=(2, 1), on_progress=step)
    write_report(
        out / "report.html",
        [out / "run"],
        title="Finding clips by what is said of them",
        intro=(
            "Two towers from scratch, trained on captioned moving shapes. The captions asked for "
            "here combine colour, shape and motion in ways that training never showed."
        ),
    )
    result = {
        **{name: value for name, value in found.items() if name[:4] in ("t2v_", "v2t_")},
        "candidates": found["samples"],
        "chance": 1 / found["samples"],
        "seed": seed,
        "seconds": time.perf_counter() - begin,
    }
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    return result
