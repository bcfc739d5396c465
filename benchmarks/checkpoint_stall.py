"""How long training is held up by a checkpoint, and how fast it goes while one is written.

The state is that of ResNet-50 (timm) with AdamW: 25.6 million weights and two moments each, in
float32, all on the CPU. Two questions, each answered by the median of interleaved rounds:

stall: seconds that `Checkpoints.save` keeps its caller. Asynchronous: until the tensors are copied;
the write goes on in a thread. Synchronous (`wait=True`): until the file is on disk. The first copy
also pays for its memory, and is given alone.

training: steps a second of a small network trained with one thread, while such a state is written,
against as many seconds without a save. Writer and training share the cores, so that on a machine
with few of them the former takes from the latter.

    python benchmarks/checkpoint_stall.py --json benchmarks/results/checkpoint_stall.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from matinee.measure import machine
from matinee.training.state.checkpoints import Checkpoints


def adamw_state() -> dict[str, Any]:
    """A ResNet-50 and its AdamW after one step."""
    network = timm.create_model("resnet50")
    optimizer = torch.optim.AdamW(network.parameters())
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    state = {"step": 1, "model": network.state_dict(), "optimizer": optimizer.state_dict()}
    return {"state": state, "vocabulary": {}}


def small_training() -> Callable[[], None]:
    """One step of a small convolutional network on 16 images of 32 x 32."""
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(network.parameters())
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))

    def step() -> None:
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def stall(checkpoints: Checkpoints, state: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Seconds the caller is held, both ways in turn."""
    held: dict[str, list[float]] = {"asynchronous": [], "synchronous": []}
    for number in range(2 * rounds + 2):
        kind = ("asynchronous", "synchronous")[number % 2]
        begin = time.perf_counter()
        checkpoints.save(state, number + 1, wait=kind == "synchronous")
        held[kind].append(time.perf_counter() - begin)
        checkpoints.wait()
    first = held["asynchronous"].pop(0)
    del held["synchronous"][0]
    middle = {kind: statistics.median(seconds) for kind, seconds in held.items()}
    return {
        "seconds": {kind: round(value, 4) for kind, value in middle.items()},
        "first_asynchronous": round(first, 4),
        "synchronous_over_asynchronous": round(middle["synchronous"] / middle["asynchronous"], 1),
        "rounds": {kind: [round(s, 4) for s in seconds] for kind, seconds in held.items()},
    }


def training(checkpoints: Checkpoints, state: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Steps a second while a save is written, and for as long without one."""
    step = small_training()
    for _ in range(20):
        step()
    during, without, writes = [], [], []
    longest: dict[str, list[float]] = {"while_saving": [], "without": []}
    for number in range(1001, 1001 + rounds):
        checkpoints.save(state, number)
        times = _times(step, lambda number=number: checkpoints.stats.step == number)
        checkpoints.wait()
        seconds = times[-1] - times[0]
        during.append((len(times) - 1) / seconds)
        longest["while_saving"].append(max(b - a for a, b in pairwise(times)))
        writes.append(checkpoints.stats.written_s)
        end = time.perf_counter() + seconds
        times = _times(step, lambda end=end: time.perf_counter() > end)
        without.append((len(times) - 1) / (times[-1] - times[0]))
        longest["without"].append(max(b - a for a, b in pairwise(times)))
    share = statistics.median(a / b for a, b in zip(during, without, strict=True))
    return {
        "steps_per_s": {
            "while_saving": round(statistics.median(during), 1),
            "without": round(statistics.median(without), 1),
        },
        "share_of_speed_while_saving": round(share, 3),
        "longest_step_s": {n: round(statistics.median(held), 4) for n, held in longest.items()},
        "write_s": round(statistics.median(writes), 3),
        "rounds": {
            "while_saving": [round(value, 1) for value in during],
            "without": [round(value, 1) for value in without],
        },
    }


def _times(step: Callable[[], None], ended: Callable[[], bool]) -> list[float]:
    """When each step began, and the last ended."""
    times = [time.perf_counter()]
    while not ended():
        step()
        times.append(time.perf_counter())
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write results here")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="where to save; default: a temporary folder")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {
        "machine": machine.describe("torch", "timm"),
        "load_before": round(os.getloadavg()[0], 1),
    }
    state = adamw_state()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder, Checkpoints(Path(folder)) as held:
        held.begin(0)
        results["stall"] = stall(held, state, args.rounds)
        results["file_mib"] = round(held.last_file.stat().st_size / 2**20, 1)
        print(json.dumps(results["stall"]["seconds"]), flush=True)
        results["training"] = training(held, state, args.rounds)
        print(json.dumps(results["training"]["steps_per_s"]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
