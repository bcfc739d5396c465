"""Clips of an avatar signing one word each; the caption is the word.

Shows that a dual encoder can learn a small captioned set by heart (recall on the training clips
themselves): a check of the whole chain, not of understanding. Files with the same bytes are one
clip with several captions ("Beautiful" and "Pretty" are signed alike).

    python examples/sign_words.py CLIPS --out runs/sign_words [--json result.json]
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import time
from pathlib import Path

from rich.console import Console

import matinee
from matinee.data.clips import ClipSpec
from matinee.models.config import ModelConfig, Shift
from matinee.pack.annotations import read_table
from matinee.pack.profiles import make_profile
from matinee.tasks.config import ClipTextConfig, ContrastiveConfig
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from matinee.training.show.terminal import show_on


def config(data: str, out: str, *, seed: int, epochs: int) -> TrainConfig:
    """A small TSM and a small text transformer from scratch; half of the clips in each batch."""
    return TrainConfig(
        data=DataConfig(path=data),
        run=RunConfig(out=out, seed=seed),
        model=ModelConfig(backbone="resnet10t", temporal=Shift(), dropout=0.0),
        task=ContrastiveConfig(text=ClipTextConfig(width=128, heads=4, layers=2), embed_dim=128),
        clip=ClipSpec(frames=8, size=48, scale=(0.9, 1.0), ratio=(1.0, 1.0), center_scale=1.0),
        optim=OptimConfig(
            name="adamw", lr=2e-3, batch_size=73, epochs=epochs, warmup_epochs=0.1 * epochs,
            weight_decay=0.0, clip_norm=1.0,
        ),
    )  # fmt: skip


def distinct(folder: Path) -> dict[Path, list[str]]:
    """Each clip once, with the names of all files that hold it."""
    first: dict[bytes, Path] = {}
    captions: dict[Path, list[str]] = {}
    for path in sorted(folder.glob("*.mp4")):
        with path.open("rb") as file:
            own = first.setdefault(hashlib.file_digest(file, "sha256").digest(), path)
        captions.setdefault(own, []).append(path.stem)
    return captions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("clips", type=Path, help="folder of WORD.mp4")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    begin = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    table = args.out / "captions.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "text", "split"])
        for path, captions in distinct(args.clips).items():
            rows.writerow([path.name, "\n".join(captions), "train"])
    pack = args.out / "sign_words.pack"
    matinee.write_pack(pack, read_table(table, args.clips), make_profile("layered"))
    run = args.out / f"run-seed{args.seed}"
    matinee.train(
        config(str(pack), str(run), seed=args.seed, epochs=args.epochs),
        progress=show_on(Console(stderr=True), "sign words"),
    )
    found = matinee.evaluate(run, split="train")
    result = {name: value for name, value in found.items() if name[:4] in ("t2v_", "v2t_")}
    result |= {
        "clips": found["samples"],
        "captions": found["captions"],
        "seconds": time.perf_counter() - begin,
    }
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
