"""Predicted memory of a training step against what the step takes, for four networks on a CPU.

TSM (ResNet-50, 8 frames), a joint ViT-B and VideoMAE (ViT-B, 16 frames) and a dual encoder (ViT-B
of 4 frames, CLIP's text tower), at 224², each with all activations kept and with every block
computed anew. The prediction runs on fake tensors and allocates nothing. What is measured, each
case in a fresh process:

- `saved`: bytes of distinct storages that autograd hands to saved-tensor hooks during the forward
  pass of a real step, without weights, buffers and the batch;
- `peak`: the process's resident high-water mark during a step of the real StepRunner, above what it
  held before the network was built. Linux resets the mark on request (/proc/self/clear_refs, "5").
  The optimizer's state is made before, by a step on gradients of zero.

Memory of kernels' own, of allocators and of threads is in `peak` and not in the prediction.

    python benchmarks/memory_prediction.py --json benchmarks/results/memory_prediction.json
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matinee.measure import machine
from matinee.training.config import TrainConfig

MIB = 2**20


@dataclass(frozen=True)
class Case:
    """A recipe whose step is measured: `clips` at a time, `parts` times, in a number format."""

    recipe: str
    clips: int
    parts: int = 1
    precision: str = "fp32"
    recompute: int = 0

    def config(self) -> TrainConfig:
        """The recipe from scratch with a batch of these clips, without what needs more clips."""
        from matinee.recipes import RECIPES

        config = RECIPES[self.recipe]("none", "none")
        task = config.task
        if hasattr(task, "mixup"):
            task = replace(task, mixup=0.0, cutmix=0.0)
        return replace(
            config,
            model=replace(config.model, pretrained="none", partial_bn=False),
            task=task,
            optim=replace(config.optim, batch_size=self.clips * self.parts, accumulate=self.parts),
            speed=replace(config.speed, recompute=self.recompute),
        )

    @property
    def name(self) -> str:
        kept = "every block recomputed" if self.recompute else "all kept"
        parts = f" x {self.parts}" if self.parts > 1 else ""
        return f"{self.recipe}, {self.clips}{parts} clips, {self.precision}, {kept}"


NETWORKS = (
    Case("tsm", 2), Case("cls_epic100", 1), Case("videomae_kinetics", 4), Case("clip_ego4d", 4),
)  # fmt: skip
CASES = tuple(replace(case, recompute=recompute) for case in NETWORKS for recompute in (0, 1))
MORE = (
    Case("tsm", 2, parts=2), Case("videomae_kinetics", 4, parts=2),
    Case("clip_ego4d", 2, parts=4, recompute=1), Case("videomae_kinetics", 4, precision="bf16"),
    Case("clip_ego4d", 4, precision="bf16"), Case("i3d_333_kinetics", 2),
)  # fmt: skip
"""Accumulation, features of several parts, half precision, another network."""
CLASSES = 400


def predict(case: Case) -> dict[str, Any]:
    """Bytes without allocating any."""
    from matinee.measure.plan.memory import predict_memory

    return predict_memory(
        case.config(), micro_batch=case.clips, device="cpu",
        precision=case.precision, classes=CLASSES,  # type: ignore[arg-type]
    ).to_dict()  # fmt: skip


def measure(case: Case) -> dict[str, int]:
    """In this process: bytes at the fullest moment of a step, and bytes saved for its backward."""
    import open_clip  # noqa: F401  # its modules take 80 MB, which are no part of a step
    import torch

    from matinee.measure.process import held_bytes, peak_bytes, reset_peak

    torch.set_num_threads(1)
    step(replace(case, recipe="resnet50_cifar", clips=2))()  # what libraries set up once
    gc.collect()
    cpu = torch.device("cpu")
    before = held_bytes(cpu)
    run = step(case)
    reset_peak(cpu)
    run()
    peak = peak_bytes(cpu) - before
    gc.collect()
    return {"peak": peak, "saved": run(count=True)}


def step(case: Case) -> Any:
    """A function that makes a step; with `count` it returns the bytes saved for the backward."""
    import torch

    from matinee.data.batch import Batch
    from matinee.models.layout import to_channels_last
    from matinee.models.recompute import recompute_blocks
    from matinee.spans import Spans
    from matinee.tasks.build import build_task
    from matinee.tasks.vocabulary import Vocabulary
    from matinee.training.optim.build import build_optimizer
    from matinee.training.parallel.ranks import Ranks
    from matinee.training.parallel.wrap import wrap
    from matinee.training.step import StepRunner

    config, clip, optim = case.config(), case.config().clip, case.config().optim
    names = tuple(str(number) for number in range(CLASSES))
    task = build_task(
        config.task, config.model, frames=clip.frames, size=clip.size, vocabulary=Vocabulary(names)
    ).task.train()
    recompute_blocks(task.model, config.speed.recompute)
    to_channels_last(task)
    ranks = Ranks(0, 1, 1, torch.device("cpu"))
    optimizer = build_optimizer(task.model, optim)
    for p in task.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    runner = StepRunner(
        task, optimizer, wrap(task, config.parallel, ranks, parts=case.parts, bf16=False), ranks,
        parts=case.parts, seed=0, precision=case.precision, clip_norm=optim.clip_norm,
        spans=Spans(on=False),
    )  # fmt: skip
    weights = {t.untyped_storage().data_ptr() for t in (*task.parameters(), *task.buffers())}
    batches: list[int] = []

    def batch() -> Batch:
        video = torch.randn(case.clips, 3, clip.frames, clip.size, clip.size)
        batches.append(video.untyped_storage().data_ptr())
        return Batch(
            video=video, target=torch.zeros(case.clips, dtype=torch.int64),
            valid=torch.ones(case.clips, dtype=torch.bool),
            index=torch.zeros(case.clips, dtype=torch.int64), samples=("a",) * case.clips,
            num_valid=case.clips, texts=("a person opens a door",) * case.clips,
            seeds=torch.arange(case.clips),
        )  # fmt: skip

    def run(*, count: bool = False) -> int:
        held: dict[int, tuple[weakref.ref[Any], int]] = {}
        most = 0

        def save(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal most
            storage = tensor.untyped_storage()
            place = storage.data_ptr()
            if place not in weights and place not in batches:
                held[place] = weakref.ref(storage), storage.nbytes()
                alive = {key: value for key, value in held.items() if value[0]() is not None}
                most = max(most, sum(size for _, size in alive.values()))
            return tensor

        given = iter(batch, None)
        if count:
            with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
                runner(given, clips=case.clips * case.parts, number=0, lr=1e-3)
        else:
            runner(given, clips=case.clips * case.parts, number=0, lr=1e-3)
        return most

    return run


def in_fresh_process(number: int) -> dict[str, int]:
    """`measure` there; large blocks go back to the system at once, as the mark counts them."""
    command = [sys.executable, __file__, "--measure", str(number)]
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(64 * 1024)}
    out = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    result: dict[str, int] = json.loads(out.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write results here")
    parser.add_argument("--more", action="store_true", help="accumulation and bf16 as well")
    parser.add_argument("--only", help="cases whose name has this in it")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.json and args.only:
        parser.error("--json holds all cases: leave --only out")
    every = (*CASES, *MORE)
    if args.measure is not None:
        print(json.dumps(measure(every[args.measure])))
        return
    described = machine.describe("torch", "timm", "open_clip_torch")
    rows = []
    for number, case in enumerate(every if args.more else CASES):
        if args.only and args.only not in case.name:
            continue
        predicted, measured = predict(case), in_fresh_process(number)
        ratios = {
            "saved": round(predicted["saved"] / measured["saved"], 4),
            "peak": round(predicted["total"] / measured["peak"], 4),
        }
        rows.append(
            {"case": case.name, "predicted": predicted, "measured": measured, "ratio": ratios}
        )
        print(
            f"{case.name:62} saved {predicted['saved'] / MIB:7.1f} of "
            f"{measured['saved'] / MIB:7.1f} MiB ({ratios['saved']:.3f}), peak "
            f"{predicted['total'] / MIB:7.1f} of {measured['peak'] / MIB:7.1f} MiB "
            f"({ratios['peak']:.3f}), in {predicted['moment']}",
            flush=True,
        )
        if args.json:  # after each: the whole takes long
            results = {"machine": described, "cases": rows}
            args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
