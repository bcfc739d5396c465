"""Does masked pretraining pay? The same network with a tenth of the labels, pretrained or not.

The clips are those of the motion demo. All training clips are pretrained on without their labels;
a tenth of them keeps its label for fine-tuning. The network, the fine-tuning and its length are
the same for both.
"""

from __future__ import annotations

import csv
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matinee.data.clips import ClipSpec
from matinee.demo.shapes import CLASSES, write_shapes
from matinee.demo.view import DemoView, fresh_folder
from matinee.inference.evaluate import evaluate
from matinee.measure.report.write import write_report
from matinee.models.config import Joint, ModelConfig
from matinee.pack.annotations import read_table
from matinee.pack.profiles import make_profile
from matinee.pack.writing.writer import write_pack
from matinee.tasks.config import ClassificationConfig, MaskedConfig
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from matinee.training.loop import train

_NAMES = ("masked", "pretrained", "scratch")


@dataclass(frozen=True)
class PretrainingSize:
    """How much of everything. `labelled`: part of the training clips that keeps its label."""

    train_videos: int = 16
    test_videos: int = 6
    segments: int = 24
    labelled: float = 0.1
    pretrain_epochs: int = 200
    finetune_epochs: int = 100


def pretraining_configs(
    data: str, out: Path, *, seed: int, size: PretrainingSize
) -> tuple[TrainConfig, TrainConfig, TrainConfig]:
    """Masked pretraining, fine-tuning from it, and the same from scratch."""
    clip = ClipSpec(frames=8, size=32, scale=(0.8, 1.0), ratio=(1.0, 1.0), center_scale=1.0)
    model = ModelConfig(
        backbone="test_vit", patch_size=8, dropout=0.0,
        temporal=Joint(tubelet=2, positions="sine"),
    )  # fmt: skip
    masked = TrainConfig(
        data=DataConfig(path=data, train_split="train", val_split="test"),
        run=RunConfig(out=str(out / f"masked-{seed}"), seed=seed, eval_every=20),
        model=model,
        task=MaskedConfig(
            mask_ratio=0.5, decoder_depth=2, decoder_width=64, decoder_heads=2,
            normalise_targets=False,
        ),
        clip=clip,
        optim=OptimConfig(
            name="adamw", lr=2e-3, batch_size=32, epochs=size.pretrain_epochs,
            warmup_epochs=0.05 * size.pretrain_epochs, weight_decay=0.05, clip_norm=1.0,
        ),
    )  # fmt: skip
    scratch = replace(
        masked,
        data=replace(masked.data, train_split="labelled=yes"),
        run=replace(masked.run, out=str(out / f"scratch-{seed}"), views="2x1"),
        task=ClassificationConfig(),
        optim=replace(
            masked.optim, lr=1e-3, batch_size=20, epochs=size.finetune_epochs,
            warmup_epochs=0.1 * size.finetune_epochs,
        ),
    )  # fmt: skip
    pretrained = replace(
        scratch,
        run=replace(scratch.run, out=str(out / f"pretrained-{seed}")),
        model=replace(model, pretrained=str(Path(masked.run.out) / "last.pt")),
    )
    return masked, pretrained, scratch


def run_pretraining_demo(
    out: Path,
    view: DemoView,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    size: PretrainingSize | None = None,
) -> dict[str, Any]:
    """Run the demo into the folder `out`; returns what result.json holds.

    `gain` is the mean over seeds of top-1 with pretraining minus top-1 from scratch, on held-out
    videos; each seed pretrains anew.

    Raises:
        ConfigError: `out` holds something that is not this demo.
    """
    size = size or PretrainingSize()
    begin = time.perf_counter()
    runs = [f"{name}-{seed}" for name in _NAMES for seed in seeds]
    fresh_folder(out, ("shapes", "shapes.pack", "report.html", "result.json", *runs))
    view.say("1  writing the clips of the motion demo, and packing them")
    with view.counting("writing", "videos") as step:
        labels = write_shapes(
            out / "shapes", train_videos=size.train_videos, test_videos=size.test_videos,
            segments_per_video=size.segments, on_progress=step,
        )  # fmt: skip
    kept, total = keep_labels(labels, size.labelled)
    with view.counting("packing", "videos") as step:
        write_pack(
            out / "shapes.pack", read_table(labels, out / "shapes"), make_profile("layered"),
            on_progress=lambda p: step(p.videos, p.all_videos),
        )  # fmt: skip
    view.say(f"   {kept} of {total} training clips keep their label, as many of each class")
    scores: dict[str, list[float]] = {"pretrained": [], "scratch": []}
    for seed in seeds:
        view.say(f"seed {seed}: reconstruct hidden patches, then fine-tune; and fine-tune alone")
        configs = pretraining_configs(str(out / "shapes.pack"), out, seed=seed, size=size)
        for name, config in zip(_NAMES, configs, strict=True):
            train(config, progress=view.training(f"{name} {seed}"))
            if name in scores:
                found = evaluate(config.run.out)
                scores[name].append(found["top1"])
                view.say(f"   {name}: top-1 {found['top1']:.3f} on held-out videos")
    write_report(
        out / "report.html",
        [out / name for name in (f"{kind}-{seeds[0]}" for kind in _NAMES)],
        title="Does masked pretraining pay?",
        intro=(
            "A small ViT reconstructed hidden patches of clips without labels, and was then "
            "fine-tuned on a tenth of the labels; the same network was trained on that tenth alone."
        ),
    )
    gains = [a - b for a, b in zip(scores["pretrained"], scores["scratch"], strict=True)]
    result = {
        "gain": mean(gains),
        "gains": gains,
        **{f"{name}_top1": values for name, values in scores.items()},
        **{f"{name}_mean": mean(values) for name, values in scores.items()},
        **{
            f"{name}_spread": stdev(values) if len(values) > 1 else 0.0
            for name, values in scores.items()
        },
        "chance": 1 / len(CLASSES),
        "labelled": kept,
        "train_samples": total,
        "seeds": list(seeds),
        "seconds": time.perf_counter() - begin,
    }
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


def keep_labels(table: Path, part: float) -> tuple[int, int]:
    """Add a column `labelled` to a table: yes for the first `part` of each class's training rows.

    Returns:
        How many are yes, and how many training rows there are.
    """
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    train_rows = [row for row in rows if row["split"] == "train"]
    wanted = {
        label: round(count * part)
        for label, count in Counter(row["label"] for row in train_rows).items()
    }
    seen: Counter[str] = Counter()
    for row in rows:
        is_kept = row["split"] == "train" and seen[row["label"]] < wanted[row["label"]]
        seen[row["label"]] += row["split"] == "train"
        row["labelled"] = "yes" if is_kept else "no"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return sum(row["labelled"] == "yes" for row in rows), len(train_rows)
