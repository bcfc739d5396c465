"""Training throughput of each lever on one device: clips/s, peak memory, and use of its peak rate.

Every arm is the loop's own step (`StepRunner`) with one setting changed against its base arm:
number format, compilation, recomputing, attention kernels, the way clips become three-dimensional,
and where batches come from (one batch again and again, or the loader with pinned or pageable
memory). Arms run one after the other, each warmed up; the base arm of a group runs again at its
end, so that a device that slows down shows.

MFU is the operations of the forward pass × 3 (backward counts twice) over the card's published
dense bf16 rate; it is null for cards that are not in the table. Recomputing does not raise it.

    python benchmarks/gpu_throughput.py --json throughput.json
    python benchmarks/gpu_throughput.py --small --json /tmp/small.json     # a CPU can do this
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from matinee.data.batch import Batch
from matinee.data.clips import ClipSpec
from matinee.demo.shapes import write_shapes
from matinee.errors import MatineeError, first_line
from matinee.measure.machine import describe
from matinee.models.base import VideoModel
from matinee.models.config import Inflate, Joint, ModelConfig, Shift
from matinee.models.measure import model_cost
from matinee.pack.annotations import read_table
from matinee.pack.profiles import make_profile
from matinee.pack.writing.writer import write_pack
from matinee.spans import Spans
from matinee.training.config import (
    DataConfig,
    OptimConfig,
    RunConfig,
    SpeedConfig,
    TrainConfig,
)
from matinee.training.parallel.ranks import start_ranks
from matinee.training.session import Session, open_session
from matinee.training.show.progress import Silent

PEAK_BF16 = {  # dense bf16, 1e12 operations a second; NVIDIA's data sheets
    "H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "A10": 125.0, "4090": 165.2,
    "3090": 71.0, "A5000": 111.0,
}  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """What is changed against the base; `kernel` forces one of torch's attention kernels."""

    name: str
    model: ModelConfig
    speed: SpeedConfig = field(default_factory=lambda: SpeedConfig(precision="bf16"))
    source: str = "synthetic"
    kernel: SDPBackend | None = None


def groups(small: bool) -> dict[str, list[Arm]]:
    """The first arm of a group is its base."""
    cnn, vit = ("resnet14t", "test_vit") if small else ("resnet50", "vit_base_patch16_224")
    tsm = ModelConfig(cnn, Shift(), dropout=0.0)
    joint = ModelConfig(vit, Joint(), dropout=0.0, patch_size=8 if small else None)
    bf16 = SpeedConfig(precision="bf16")
    exact = SpeedConfig(precision="fp32", tf32=False)
    compiled = replace(bf16, compile="default")
    return {
        "tsm": [
            Arm("tsm bf16", tsm),
            Arm("tsm fp32", tsm, exact),
            Arm("tsm tf32", tsm, replace(exact, tf32=True)),
            Arm("tsm fp16", tsm, replace(bf16, precision="fp16")),
            Arm("tsm bf16, contiguous", tsm, replace(bf16, channels_last=False)),
            Arm("tsm bf16, compiled", tsm, compiled),
            Arm("tsm bf16, every block recomputed", tsm, replace(bf16, recompute=1)),
            Arm("tsm bf16, update not fused", tsm, replace(bf16, fused=False)),
            Arm("i3d 3x3x3 bf16", replace(tsm, temporal=Inflate(kernel="3x3x3"))),
            Arm("i3d 3x1x1 bf16", replace(tsm, temporal=Inflate(kernel="3x1x1"))),
        ],
        "joint": [
            Arm("joint bf16", joint),
            Arm("joint fp32", joint, exact),
            Arm("joint tf32", joint, replace(exact, tf32=True)),
            Arm("joint bf16, compiled", joint, compiled),
            Arm("joint bf16, every block recomputed", joint, replace(bf16, recompute=1)),
            Arm("joint bf16, plain attention", joint, kernel=SDPBackend.MATH),
        ],
        "loader": [
            Arm("tsm bf16, one batch", tsm),
            Arm("tsm bf16, loader", tsm, source="loader"),
            Arm("tsm bf16, loader, pageable", tsm, replace(bf16, pinned=False), "loader"),
            Arm("tsm bf16, loader, one stream", tsm, replace(bf16, side_stream=False), "loader"),
            Arm(
                "tsm bf16, loader, pageable, one stream", tsm,
                replace(bf16, pinned=False, side_stream=False), "loader",
            ),
        ],
    }  # fmt: skip


def settings(arm: Arm, pack: Path, out: Path, options: argparse.Namespace) -> TrainConfig:
    clip = ClipSpec(frames=options.frames, sampling="dense", size=options.size, flip="horizontal")
    return TrainConfig(
        data=DataConfig(path=str(pack), repeats=64, workers=options.workers),
        run=RunConfig(out=str(out), device=options.device),
        model=arm.model,
        clip=clip,
        optim=OptimConfig(lr=1e-4, batch_size=options.batch, epochs=1, warmup_epochs=0),
        speed=arm.speed,
    )


def measure(arm: Arm, pack: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Medians over steps of one arm."""
    device = torch.device(options.device)
    kernel: AbstractContextManager[Any] = (
        sdpa_kernel(arm.kernel) if arm.kernel is not None else nullcontext()
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        start_ranks(options.device, 600) as ranks,
        kernel,
    ):
        config = settings(arm, pack, Path(folder) / "run", options)
        session = open_session(config, ranks, Silent(), Spans(), resume=False)
        with session:
            batches = source(session, arm.source)
            begin = time.perf_counter()
            run(session, batches, options.warm_up)
            wait(device)
            warm_up_s = time.perf_counter() - begin
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            session.runner.spans.take()
            times = []
            for _ in range(options.rounds):
                begin = time.perf_counter()
                run(session, batches, options.steps)
                wait(device)
                times.append((time.perf_counter() - begin) / options.steps)
            spans = session.runner.spans.take()
            network = session.setup.task.model
            assert isinstance(network, VideoModel)
            cost = model_cost(network, options.size)
    median = sorted(times)[len(times) // 2]
    rate = options.batch / median
    peak = peak_rate(device)
    return {
        "arm": arm.name,
        "clips_per_s": rate,
        "ms_per_step": 1e3 * median,
        "spread": (max(times) - min(times)) / median,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
        "mfu": None if peak is None else 3 * cost.flops * rate / (peak * 1e12),
        "gmac": cost.flops / 2e9,
        "warm_up_s": warm_up_s,
        "data_wait_share": spans.get("data_wait", 0.0) / (sum(times) * options.steps),
    }


def run(session: Session, batches: Iterator[Batch], steps: int) -> None:
    clips = session.config.optim.batch_size
    for _ in range(steps):
        stepped = session.runner(batches, clips=clips, number=session.state.step, lr=1e-4)
        session.done(stepped, clips)
    session.state.recent.clear()


def source(session: Session, kind: str) -> Iterator[Batch]:
    """Batches without end."""
    loader = iter(session.batches(0))
    if kind == "synthetic":
        batch = next(loader)
        while True:
            yield batch
    while True:
        yield from session.state.loader


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_rate(device: torch.device) -> float | None:
    """Published dense bf16 rate of this card, 1e12 operations a second."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((rate for mark, rate in PEAK_BF16.items() if mark in name), None)


def make_pack(folder: Path, small: bool) -> Path:
    """Moving shapes at the size that real clips are packed in."""
    labels = write_shapes(
        folder / "videos", train_videos=4 if small else 24, test_videos=1, segments_per_video=4,
        size=(96, 128) if small else (288, 512),
    )  # fmt: skip
    write_pack(folder / "shapes.pack", read_table(labels, labels.parent), make_profile("layered"))
    return folder / "shapes.pack"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="tiny networks, to try the script")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--size", type=int)
    parser.add_argument("--steps", type=int, default=5, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=4)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--only", help="arms whose name holds this")
    parser.add_argument("--seconds", type=float, default=300, help="begin no arm after so long")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.batch = options.batch or (4 if options.small else 16)
    options.size = options.size or (32 if options.small else 224)
    rows: list[dict[str, Any]] = []
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        pack = make_pack(Path(folder), options.small)
        for group, arms in groups(options.small).items():
            for arm in (*arms, replace(arms[0], name=f"{arms[0].name}, again")):
                if options.only and options.only not in arm.name:
                    continue
                row: dict[str, Any] = {"group": group, "arm": arm.name}
                if time.perf_counter() - begin > options.seconds:
                    row["left_out"] = f"after {options.seconds:.0f} s"
                else:
                    try:
                        row |= measure(arm, pack, options)
                    except (MatineeError, RuntimeError) as error:
                        row["failed"] = first_line(error)
                rows.append(row)
                print(shown(row), flush=True)
                if options.json:
                    write(options, rows)


def shown(row: dict[str, Any]) -> str:
    if "clips_per_s" not in row:
        return f"{row['arm']:<42} {row.get('failed') or row.get('left_out')}"
    memory = "" if row["peak_gib"] is None else f" {row['peak_gib']:7.2f} GiB"
    mfu = "" if row["mfu"] is None else f"  MFU {row['mfu']:.1%}"
    waits = f"  waits for data {row['data_wait_share']:.0%}"
    return f"{row['arm']:<42} {row['clips_per_s']:8.1f} clips/s{memory}{mfu}{waits}"


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    on_gpu = torch.cuda.is_available()
    content = {
        "machine": describe("torch", "timm"),
        "gpu": torch.cuda.get_device_name() if on_gpu else None,
        "peak_bf16_tflops": peak_rate(torch.device(options.device)),
        "batch": options.batch, "frames": options.frames, "size": options.size,
        "arms": rows,
    }  # fmt: skip
    options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
