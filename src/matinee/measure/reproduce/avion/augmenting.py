"""Augmentation: frame by frame with PIL in workers, or a batch at once where the batch is used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from matinee.data.assemble import assemble
from matinee.data.clips import ClipPlan, ClipSpec
from matinee.data.device import IMAGENET_MEAN, IMAGENET_STD
from matinee.extras import require
from matinee.measure.arms import Turns, take_turns
from matinee.measure.draw.figures import Bars, Series
from matinee.measure.reproduce.avion.before import to_float
from matinee.measure.reproduce.avion.footage import Footage
from matinee.measure.reproduce.avion.options import Options
from matinee.measure.reproduce.avion.reading import Ours
from matinee.measure.result import Part, Table
from matinee.pack.reading.reader import Pack

CLIPS = 4
"""Of a turn, and of a batch on the device."""
_COLOURS = (1.2, 0.8, 1.3)
"""Factors of brightness, contrast and saturation."""


@dataclass(frozen=True)
class Ready(Dataset[Tensor]):
    """Clips that cost a worker a copy: what is left is handing them over."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> Tensor:
        return torch.full(self.shape, index % 2, dtype=self.dtype)


def measure_augmenting(
    options: Options, footage: Footage, plans: Sequence[ClipPlan], tell: Callable[[str], None]
) -> tuple[Part, dict[str, Any]]:
    """Milliseconds a clip of making a batch of decoded clips, and bytes handed over."""
    tell("augmentation")
    size, chosen = options.scale.size, list(plans[:CLIPS])
    rgb, i420 = (_decoded(footage.pack, chosen, size, pixels) for pixels in ("rgb", "i420"))
    spec = ClipSpec(frames=options.frames, sampling="dense", size=size)
    arms: dict[str, Callable[[], float]] = {}
    for after, colour in (("", (1.0, 1.0, 1.0)), (", with colours", _COLOURS)):
        changed = [replace(plan, color=colour) for plan in chosen]
        arms[f"PIL, frame by frame{after}"] = _timed(partial(_by_frame, rgb, changed))
        arms[f"batch at once{after}"] = _timed(partial(_at_once, footage.pack, i420, changed, spec))
    turns = take_turns(arms, 2 * options.scale.rounds)
    handed = _hand_over(options, size)
    pixels = options.frames * size * size
    sizes = {"float32 RGB": 12 * pixels, "8-bit I420": pixels * 3 // 2}
    return _part(turns, handed, sizes), {
        "ms_a_clip": {name: turns.spread(name).to_dict() for name in turns.values},
        "hand_over_ms_a_clip": {name: handed.spread(name).to_dict() for name in handed.values},
        "bytes_a_clip": sizes,
    }


def _decoded(pack: Pack, plans: Sequence[ClipPlan], size: int, pixels: Any) -> NDArray[np.uint8]:
    """[B, T, bytes of a frame]."""
    info = pack.info(0)
    reader = Ours(pack, plans, (info.width, info.height), size=size, pixels=pixels)
    return np.stack([reader.read(index).copy() for index in range(len(plans))])


def _by_frame(clips: NDArray[np.uint8], plans: Sequence[ClipPlan]) -> list[Tensor]:
    """RGB bytes [B, T, H·W·3] to float32 [3, T, H, W] each, by torchvision's transforms on PIL."""
    image = require("PIL.Image", "train")
    vision = require("torchvision.transforms.functional", "train")
    side = round((clips.shape[2] / 3) ** 0.5)
    videos = []
    for clip, plan in zip(clips, plans, strict=True):
        frames = []
        for frame in clip:
            picture = image.fromarray(frame.reshape(side, side, 3))
            if plan.flip:
                picture = vision.hflip(picture)
            if plan.color != (1.0, 1.0, 1.0):
                picture = vision.adjust_brightness(picture, plan.color[0])
                picture = vision.adjust_contrast(picture, plan.color[1])
                picture = vision.adjust_saturation(picture, plan.color[2])
            frames.append(np.asarray(picture))
        videos.append(to_float(np.stack(frames)))
    return videos


def _at_once(
    pack: Pack, i420: NDArray[np.uint8], plans: Sequence[ClipPlan], spec: ClipSpec
) -> Tensor:
    """I420 bytes [B, T, bytes] to float32 [B, 3, T, H, W]."""
    formats = [pack.formats[pack.info(0).codec]] * len(plans)
    return assemble(
        i420, plans, formats, spec, device=torch.device("cpu"), mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )  # fmt: skip


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    """Milliseconds a clip."""

    def run() -> float:
        begin = time.perf_counter()
        work()
        return 1000 * (time.perf_counter() - begin) / CLIPS

    return run


def _hand_over(options: Options, size: int) -> Turns:
    """Milliseconds a clip from one worker of torch's DataLoader to the training process."""
    frames = options.frames
    kinds = {
        "float32 RGB": Ready((3, frames, size, size), torch.float32),
        "8-bit I420": Ready((frames, size * size * 3 // 2), torch.uint8),
    }
    batches: dict[str, Iterator[Tensor]] = {
        name: iter(DataLoader(data, CLIPS, num_workers=1)) for name, data in kinds.items()
    }

    def arm(name: str) -> Callable[[], float]:
        def run() -> float:
            for _ in range(3):  # made ahead while the other had its turn
                next(batches[name])
            begin = time.perf_counter()
            for _ in range(4):
                next(batches[name])
            return 1000 * (time.perf_counter() - begin) / (4 * CLIPS)

        return run

    return take_turns({name: arm(name) for name in kinds}, options.scale.rounds)


def _part(turns: Turns, handed: Turns, sizes: dict[str, int]) -> Part:
    names = list(turns.values)
    pairs = [(names[0], names[1]), (names[2], names[3])]
    work = Table(
        ("from a decoded crop to normalised float32", "ms a clip", "faster by"),
        [
            row
            for slow, fast in pairs
            for row in (
                (slow, str(turns.spread(slow)), ""),
                (fast, str(turns.spread(fast)), f"{turns.ratio(slow, fast).median:.1f}×"),
            )
        ],
        heading="Mirroring, normalising; and brightness, contrast, saturation",
        note="By frame: from RGB. At once: from I420, its conversion to RGB included.",
    )
    slow, fast = handed.values
    moved = Table(
        ("what a worker hands over", "MB a clip", "ms a clip", "faster by"),
        [
            (
                name, f"{sizes[name] / 1e6:.2f}", str(handed.spread(name)),
                "" if name == slow else f"{handed.ratio(slow, fast).median:.1f}×",
            )
            for name in handed.values
        ],
        heading="Handing over, through one worker of torch's DataLoader",
        note="The worker fills the clip and does nothing else.",
    )  # fmt: skip
    plot = Bars(
        "Milliseconds a clip of augmentation.", names, "ms a clip",
        [Series("ms", [], [turns.spread(name).median for name in names])],
    )  # fmt: skip
    text = (
        "AVION moves augmentation to the GPU. Here the device is the CPU: both ways run on the "
        "same cores, so the table says what each costs, and how many bytes go to the device. What "
        "it cannot show: that a GPU does the second while workers decode on, and what a copy over "
        "PCIe takes. On a machine with a GPU the second way costs these cores nothing."
    )
    return Part("augmentation", "Augmentation on the device", text, (work, moved), {"ms": plot})
