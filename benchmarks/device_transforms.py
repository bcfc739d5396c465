"""CPU milliseconds for a clip of 16 frames of 224²: all that is done to its picture, and peers.

Ours for a whole clip; beside it timm's function on each frame with Pillow, or torchvision's on the
clip, with the same numbers (for the conversion: PyAV's swscale to RGB, then float and normalised by
torch). All take turns in one process with one thread; medians of processor time, so that a busy
machine disturbs them little. `blocks`: the conversion, cut into other blocks than is the default.

    python benchmarks/device_transforms.py --json benchmarks/results/device_transforms.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import av  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torchvision.transforms.v2.functional as vision  # noqa: E402
from PIL import Image  # noqa: E402
from timm.data import auto_augment as timm_ops  # noqa: E402
from timm.data.random_erasing import RandomErasing  # noqa: E402
from torch import Tensor  # noqa: E402

from matinee.data.augment import blocks  # noqa: E402
from matinee.data.augment.apply import augment  # noqa: E402
from matinee.data.augment.erase import erase  # noqa: E402
from matinee.data.augment.plan import (  # noqa: E402
    NAMES,
    AugmentPlan,
    operation_at,
    plan_augment,
)
from matinee.data.clips import ClipSpec  # noqa: E402
from matinee.data.device import (  # noqa: E402
    IMAGENET_MEAN,
    IMAGENET_STD,
    normalise,
    to_rgb,
    to_video,
)
from matinee.data.random import generator  # noqa: E402
from matinee.measure import machine  # noqa: E402
from matinee.media.color import ycbcr_to_rgb  # noqa: E402

FRAMES, SIZE, MAGNITUDE = 16, 224, 7
TIMM: dict[str, Callable[..., Image.Image]] = {
    "autocontrast": timm_ops.auto_contrast,
    "equalize": timm_ops.equalize,
    "invert": timm_ops.invert,
    "rotate": timm_ops.rotate,
    "posterize": timm_ops.posterize,
    "solarize": timm_ops.solarize,
    "solarize-add": timm_ops.solarize_add,
    "color": timm_ops.color,
    "contrast": timm_ops.contrast,
    "brightness": timm_ops.brightness,
    "sharpness": timm_ops.sharpness,
    "shear-x": timm_ops.shear_x,
    "shear-y": timm_ops.shear_y,
    "translate-x": timm_ops.translate_x_rel,
    "translate-y": timm_ops.translate_y_rel,
}
Arms = dict[str, Callable[[], Any]]


def footage(clips: int) -> Tensor:
    """Smooth moving colours as I420, uint8 [B, T, bytes]."""
    y, x = np.mgrid[:SIZE, :SIZE] / 20
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(clips):
        a, b, c = rng.uniform(0.5, 2, 3)
        frames = []
        for t in range(FRAMES):
            luma = 126 + 100 * np.sin(a * x + t / 3) * np.cos(b * y) + rng.normal(0, 5, x.shape)
            chroma = [128 + 60 * np.sin(c * (x + k * y) + t / 5)[::2, ::2] for k in (1, -1)]
            planes = [plane.clip(0, 255).astype(np.uint8).ravel() for plane in (luma, *chroma)]
            frames.append(np.concatenate(planes))
        rows.append(np.stack(frames))
    return torch.from_numpy(np.stack(rows))


def conversion(batch: int) -> dict[str, Arms]:
    """I420 to normalised RGB, a clip of a batch."""
    i420 = footage(batch)
    affine = torch.tensor(np.stack([ycbcr_to_rgb("bt601", False)] * batch), dtype=torch.float32)
    flip = torch.arange(batch) % 2 == 0
    pictures = [
        av.VideoFrame.from_ndarray(frame.numpy().reshape(-1, SIZE), format="yuv420p")
        for frame in i420[0]
    ]
    rgb = to_rgb(i420, affine, None, size=(SIZE, SIZE))

    def swscale() -> Tensor:
        frames = np.stack([p.reformat(format="rgb24").to_ndarray() for p in pictures])
        video = torch.from_numpy(frames).permute(0, 3, 1, 2)
        return vision.normalize(video.float() / 255, list(IMAGENET_MEAN), list(IMAGENET_STD))

    def cut(pixels: int) -> Tensor:
        kept, blocks.PIXELS = blocks.PIXELS, pixels
        try:
            return to_video(i420, affine, None, size=(SIZE, SIZE))
        finally:
            blocks.PIXELS = kept

    sizes = {f"{n} frames": SIZE * SIZE * n for n in (1, 2, 4, 8, 16)}
    whole: Arms = {
        "plain": lambda: to_video(i420, affine, None, size=(SIZE, SIZE)),
        "half mirrored": lambda: to_video(i420, affine, flip, size=(SIZE, SIZE)),
        "to 8-bit RGB": lambda: to_rgb(i420, affine, flip, size=(SIZE, SIZE)),
        "8-bit RGB to normalised": lambda: normalise(rgb, IMAGENET_MEAN, IMAGENET_STD),
    }
    return {
        "conversion": {**whole, "swscale and torch": swscale},
        "blocks": {name: lambda n=n: cut(n) for name, n in sizes.items()},
    }


def operations() -> dict[str, Arms]:
    """Each operation of RandAugment at one magnitude, hue, blur and noise."""
    clip = to_rgb(
        footage(1),
        torch.tensor(ycbcr_to_rgb("bt601", False), dtype=torch.float32)[None],
        None,
        size=(SIZE, SIZE),
    )
    work = clip.clone()  # changed again and again, which takes no other time
    frames = [Image.fromarray(f.numpy()) for f in clip[0].permute(1, 2, 3, 0)]
    bilinear = {"fillcolor": (128,) * 3, "resample": Image.Resampling.BILINEAR}
    arms: dict[str, Arms] = {}
    for name in NAMES:
        operation = operation_at(name, MAGNITUDE)
        number = [operation.value] if operation.value else []
        if name in ("posterize", "solarize", "solarize-add"):
            number = [int(operation.value)]
        arms[name] = {
            "ours": lambda o=operation: augment(work, [AugmentPlan(operations=(o,))]),
            "timm": lambda name=name, number=number: [
                TIMM[name](f, *number, **bilinear) for f in frames
            ],
        }
    still = clip[0].transpose(0, 1).contiguous()
    arms["hue"] = {
        "ours": lambda: augment(work, [AugmentPlan(hue=0.1)]),
        "torchvision": lambda: vision.adjust_hue(still, 0.1),
    }
    arms["blur, sigma 2"] = {
        "ours": lambda: augment(work, [AugmentPlan(blur=2.0)]),
        "torchvision": lambda: vision.gaussian_blur(still, [13, 13], [2.0, 2.0]),
    }
    video = torch.randn(1, 3, FRAMES, SIZE, SIZE)
    box = AugmentPlan(erase=((0.3, 0.7, 0.3, 0.7),), noise=1)
    timm_erase = RandomErasing(1.0, 0.16, 0.16, 1.0, 1.0, mode="pixel", device="cpu")
    arms["noise, 16 % of the picture"] = {
        "ours": lambda: erase(video, [box]),
        "timm": lambda: timm_erase(video[0].transpose(0, 1)),
    }
    return arms


def recipe(batch: int) -> dict[str, Arms]:
    """From I420 to normalised clips as fine-tuning of VideoMAE varies them."""
    spec = ClipSpec(
        frames=FRAMES, size=SIZE, rand_augment=4, rand_magnitude=MAGNITUDE, erasing=0.25,
        erasing_fill="noise",
    )  # fmt: skip
    i420 = footage(batch)
    affine = torch.tensor(np.stack([ycbcr_to_rgb("bt601", False)] * batch), dtype=torch.float32)
    turn = iter(range(10**9))

    def ours() -> None:
        epoch = next(turn)
        plans = [plan_augment(spec, generator(0, epoch, i, "clip0")) for i in range(batch)]
        rgb = augment(to_rgb(i420, affine, None, size=(SIZE, SIZE)), plans)
        erase(normalise(rgb, IMAGENET_MEAN, IMAGENET_STD), plans)

    pictures = [
        av.VideoFrame.from_ndarray(frame.numpy().reshape(-1, SIZE), format="yuv420p")
        for frame in i420[0]
    ]
    keywords = {"fillcolor": (128,) * 3, "resample": Image.Resampling.BILINEAR}

    def theirs() -> None:
        """The same operations on all frames of a clip, from the same plan."""
        plan = plan_augment(spec, generator(0, next(turn), 0, "clip0"))
        frames = [p.to_image() for p in pictures]
        for o in plan.operations:
            number = [o.value] if o.value else []
            if o.name in ("posterize", "solarize", "solarize-add"):
                number = [int(o.value)]
            if o.name != "posterize" or o.value:  # Pillow refuses to keep no bit
                frames = [TIMM[o.name](f, *number, **keywords) for f in frames]
        video = torch.from_numpy(np.stack([np.asarray(f) for f in frames])).permute(0, 3, 1, 2)
        vision.normalize(video.float() / 255, list(IMAGENET_MEAN), list(IMAGENET_STD))

    return {"rand_augment 4, magnitude 7, with conversion": {"ours": ours, "timm, Pillow": theirs}}


def timed(arms: Arms, clips: dict[str, int], turns: int) -> dict[str, float]:
    """Median CPU ms a clip; the arms take turns."""
    spent: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(turns + 1):
        for name, work in arms.items():
            begin = time.process_time()
            work()
            if turn:  # the first warms caches
                spent[name].append((time.process_time() - begin) * 1e3 / clips.get(name, 1))
    return {name: round(median(values), 3) for name, values in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {
        "machine": machine.describe("matinee", "torch", "torchvision", "timm", "pillow", "av"),
        "clip": {"frames": FRAMES, "size": SIZE, "batch": given.batch},
        "unit": "CPU ms a clip, median",
    }
    alone = {"swscale and torch", "timm, Pillow"}
    for groups in (conversion(given.batch), operations(), recipe(given.batch)):
        for group, arms in groups.items():
            one = len(groups) > 3  # single operations work on one clip
            clips = {name: given.batch for name in arms if not one and name not in alone}
            many = given.turns * (4 if "rand_augment" in group else 1)
            report[group] = timed(arms, clips, many)
            print(f"{group}: {report[group]}", file=sys.stderr, flush=True)
    text = json.dumps(report, indent=2, ensure_ascii=False)
    if given.json:
        given.json.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
