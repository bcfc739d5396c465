"""TSN, TSM and two I3Ds made of one ResNet-50: parameters, multiply-adds, and training clips/s.

A training step is forward, cross-entropy, backward and SGD with momentum, in float32, on a clip of
noise that stays in memory: no decoding, no augmentation. Every block of the I3Ds is inflated. The
four networks take turns of one step in one process, in an order that rotates each round, so a noisy
machine disturbs them alike; the first round warms up and is not counted. Ratios are taken within a
round, then their median.

    python benchmarks/tsm_against_i3d.py --json benchmarks/results/tsm_against_i3d.json
    python benchmarks/tsm_against_i3d.py --json /tmp/quick.json --size 64 --rounds 2
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from matinee.measure import machine
from matinee.models.base import VideoModel
from matinee.models.build import build_video_model
from matinee.models.config import Frames, Inflate, ModelConfig, Shift, Temporal
from matinee.models.measure import model_cost

FRAMES, CLASSES = 8, 400
NETWORKS: dict[str, Temporal] = {
    "tsn": Frames(),
    "tsm": Shift(),
    "i3d_3x3x3": Inflate(kernel="3x3x3"),
    "i3d_3x1x1": Inflate(kernel="3x1x1"),
}
PUBLISHED = {
    "tsm_over_3d_networks": [1.6, 2.9],
    "what": "TSM trains 1.6x and 2.9x faster than 3-D video networks, on the GPUs of Summit",
    "source": "Training Kinetics in 15 Minutes, arXiv 1910.00932, abstract",
}

Step = Callable[[], float]


def build(temporal: Temporal, size: int) -> VideoModel:
    """ResNet-50 for clips, from scratch."""
    torch.manual_seed(0)
    config = ModelConfig(backbone="resnet50", temporal=temporal, pretrained="none")
    return build_video_model(config, num_classes=CLASSES, frames=FRAMES, size=size)[0]


def trainer(model: VideoModel, batch: int, size: int, device: torch.device) -> Step:
    """A training step of `model` that returns its seconds."""
    model.to(device).train()
    for weight in model.parameters():
        if weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    clips = torch.randn(batch, 3, FRAMES, size, size, device=device)
    targets = torch.arange(batch, device=device)

    def step() -> float:
        _wait(device)
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(clips), targets).backward()
        optimizer.step()
        _wait(device)
        return time.perf_counter() - begin

    return step


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def take_turns(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Seconds of each network's step in each round but the first."""
    spent: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for turn in range(rounds + 1):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds = steps[name]()
            if turn:
                spent[name].append(seconds)
    return spent


def summary(spent: dict[str, list[float]], batch: int) -> dict[str, Any]:
    """Medians and quartiles of clips/s, and of how many times faster TSM is."""
    seconds = {name: np.array(times) for name, times in spent.items()}
    speeds = {name: batch / times for name, times in seconds.items()}
    ratios = {
        f"tsm_over_{name}": s / seconds["tsm"] for name, s in seconds.items() if name != "tsm"
    }
    return {"clips_per_second": _spread(speeds), "ratios": _spread(ratios)}


def _spread(rows: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "median": float(np.median(row)),
            "quartiles": [float(np.percentile(row, q)) for q in (25, 75)],
        }
        for name, row in rows.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, required=True, help="result file")
    parser.add_argument("--size", type=int, default=224, help="height and width in pixels")
    parser.add_argument("--batch", type=int, default=1, help="clips a step")
    parser.add_argument("--rounds", type=int, default=12, help="steps of each network")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    args = parser.parse_args()
    costs, steps = {}, {}
    for name, temporal in NETWORKS.items():
        model = build(temporal, args.size)
        cost = model_cost(model, args.size)
        costs[name] = {
            "parameters": cost.parameters, "gmac": cost.gmac, "gflops": cost.gflops,
        }  # fmt: skip
        steps[name] = trainer(model, args.batch, args.size, args.device)
    described = machine.describe("matinee", "timm", "torch")
    described["threads"] = torch.get_num_threads()
    if args.device.type == "cuda":
        described["gpu"] = torch.cuda.get_device_name(args.device)
    spent = take_turns(steps, args.rounds)
    result = {
        "benchmark": "tsm_against_i3d",
        "clip": {"frames": FRAMES, "size": args.size, "classes": CLASSES},
        "step": {"batch": args.batch, "precision": "float32", "rounds": args.rounds},
        "machine": described,
        "cost_of_a_clip": costs,
        **summary(spent, args.batch),
        "seconds": spent,
        "published": PUBLISHED,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


def show(result: dict[str, Any]) -> None:
    print(f"{'':12}{'parameters':>12}{'GMAC':>8}{'GFLOPs':>8}{'clips/s':>10}   TSM is faster by")
    for name, cost in result["cost_of_a_clip"].items():
        speed = result["clips_per_second"][name]["median"]
        line = f"{name:12}{cost['parameters'] / 1e6:10.2f} M{cost['gmac']:8.2f}"
        line += f"{cost['gflops']:8.2f}{speed:10.3f}"
        ratio = result["ratios"].get(f"tsm_over_{name}")
        if ratio is not None:
            low, high = ratio["quartiles"]
            line += f"   {ratio['median']:.2f} (quartiles {low:.2f} to {high:.2f})"
        print(line)
    print(f"published: {PUBLISHED['what']} ({PUBLISHED['source']})")


if __name__ == "__main__":
    main()
