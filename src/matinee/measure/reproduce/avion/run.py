"""The whole reproduction: footage, parts in turn, and what the paper says beside."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from matinee.extras import require
from matinee.measure.reproduce.avion import published
from matinee.measure.reproduce.avion.augmenting import measure_augmenting
from matinee.measure.reproduce.avion.before_after import (
    contrastive_part,
    loaders_part,
    masked_part,
)
from matinee.measure.reproduce.avion.footage import make_footage, sample_videos, user_videos
from matinee.measure.reproduce.avion.memory import build, measure_memory
from matinee.measure.reproduce.avion.options import Options
from matinee.measure.reproduce.avion.predicted import predicted_part
from matinee.measure.reproduce.avion.reading import measure_chunks, measure_fusion
from matinee.measure.reproduce.avion.steps import evaluation_plans, masked_work
from matinee.measure.result import Part, Result, Table, options_of

OnStep = Callable[[int, int, str], None]
NEEDED = (
    ("timm", "train"), ("PIL.Image", "train"), ("matplotlib", "train"), ("open_clip", "text"),
    ("decord", "bench"),
)  # fmt: skip


def reproduce(options: Options, *, on_step: OnStep) -> Result:
    """Measure everything and say it beside what was published.

    Raises:
        ConfigError: an option that cannot be used, or no footage.
        MissingExtra: a package is not installed.
    """
    for package, extra in NEEDED:
        require(package, extra)
    if options.videos is None:
        sample_videos()
    else:
        user_videos(options.videos)
    masked_work(options)  # refuses a network that is no ViT before anything takes long
    with torch.device("meta"):
        build(options.memory_backbone, 1, size=options.scale.size, way="fused")
    progress = _Progress(on_step)
    parts: list[Part] = []
    data: dict[str, Any] = {}
    with _folder(options) as folder:
        footage = make_footage(options, Path(folder), progress.part("footage", 10))
        plans = evaluation_plans(options, footage, options.frames)
        measured: tuple[tuple[str, int, Callable[[Callable[[str], None]], Any]], ...] = (
            ("memory", 25, lambda tell: measure_memory(options, tell)),
            ("chunks", 10, lambda tell: measure_chunks(options, footage, plans, tell)),
            ("fusion", 10, lambda tell: measure_fusion(options, footage, plans, tell)),
            ("augmentation", 5, lambda tell: measure_augmenting(options, footage, plans, tell)),
            ("loaders", 10, lambda tell: loaders_part(options, footage, tell)),
            ("videomae", 15, lambda tell: masked_part(options, footage, tell)),
            ("contrastive", 10, lambda tell: contrastive_part(options, footage, tell)),
            ("published-size", 5, predicted_part),
        )
        for name, share, measure in measured:
            part, numbers = measure(progress.part(name, share))
            parts.append(part)
            data[name] = numbers
    progress.part("done", 0)("")
    return Result(
        "avion", "AVION, reproduced at this machine's size",
        "“Training a Large Video Model on a Single Machine in a Day” (arXiv 2309.16669) finds "
        "three bottlenecks of training on video, reading, decoding and memory, and removes each. "
        "Here each lever is measured alone, on real footage, against what training scripts "
        "usually do, then whole steps. Absolute figures are this machine's; what should carry over "
        "are ratios.",
        [_summary(options, data), *parts],
        {"options": options_of(options), **data},
    )  # fmt: skip


def _folder(options: Options) -> AbstractContextManager[str]:
    if options.keep is not None:
        return nullcontext(str(options.keep))
    return tempfile.TemporaryDirectory(prefix="matinee-avion-")


class _Progress:
    """Parts of a whole of 100, told as they begin."""

    def __init__(self, on_step: OnStep) -> None:
        self._on_step, self._done, self._share = on_step, 0, 0

    def part(self, name: str, share: int) -> Callable[[str], None]:
        """Begins a part that takes `share` of the time; call it with what is being done."""
        self._done, self._share = self._done + self._share, share
        return lambda note: self._on_step(self._done, 100, note or name)


def _summary(options: Options, data: dict[str, Any]) -> Part:
    memory = data["memory"]["times_less"]["recomputed"]
    loaders, mae, pairs = data["loaders"], data["videomae"], data["contrastive"]
    rows = [
        (
            f"memory a clip, {options.memory_backbone}, {options.frames} frames: explicit "
            "attention over SDPA and recomputed blocks", "", "6×",
            f"{memory['fp32']:.1f}× fp32, {memory['bf16']:.1f}× bf16", _met(memory["fp32"] >= 6),
        )
    ]  # fmt: skip
    for name, ratio in loaders["times_faster"].items():
        apart = loaders["times_faster_device_apart"][name]["median"]
        rows.append((
            f"clips/s, matinee over {name}", "", "10×",
            f"{ratio['median']:.1f}× ({apart:.1f}× device apart)", _met(ratio["median"] >= 10),
        ))  # fmt: skip
    for what, found, said, goal in (
        ("VideoMAE", mae, f"{published.VIDEOMAE_STEP:.2f}", 0.65),
        ("contrastive", pairs, "", None),
    ):
        for name, ratio in found["after_over_before"].items():
            plain = found["fp32_over_before"][name]["median"]
            rows.append((
                f"{what} step, after over {name}", said, "" if goal is None else f"{goal:.2f}",
                f"{ratio['median']:.2f} ({plain:.2f} in fp32)",
                "" if goal is None else _met(ratio["median"] <= goal),
            ))  # fmt: skip
    here = Table(
        ("what", "published", "goal", "here", "met"), rows,
        heading="Measured here",
        note="Published figures are of other hardware and, where named, of other baselines: "
        "EgoVLP's GPU-hours were another network on 32 A100. Goals are matinee's own for this "
        "machine.",
    )  # fmt: skip
    told = Table(
        ("published", "before", "after", "ratio", "source"),
        [
            (p.what, p.before, p.after, "" if p.ratio is None else _times(p.ratio), p.source)
            for p in published.ALL
        ],
        heading="What AVION published",
        note=published.NOTE,
    )
    return Part("summary", "In short", "", (here, told))


def _times(ratio: float) -> str:
    return f"{ratio:.1f}×"


def _met(reached: bool) -> str:
    return "yes" if reached else "no"
