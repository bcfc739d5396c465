"""Clips a second: the usual loader of VideoMAE's training scripts against matinee's.

The usual one (as in the scripts that came with arXiv 2203.12602): torch's DataLoader; in each
worker decord opens the file and decodes whole frames, PIL crops and scales each frame, frames
become float tensors and are normalised, and the tube mask is drawn with NumPy. matinee's: a
layered pack, decoding fused with cropping in worker processes; the device makes of I420 normalised
float RGB and draws the mask. Here the device is the CPU, which then does a GPU's work besides, on
the cores that decode; `matinee_device_apart` is the same with a device that costs the CPU nothing
(torch's "meta").

Both read the same frames of the same footage with the same crops, two workers each, and hand out
float32 [B, 3, 16, 224, 224] and masks. The usual loader reads the footage twice over: from the
1080p original, and from a copy of 320 lines, to which its instructions have one shrink a data set
first. Arms take turns, batch by batch; medians are reported.

    python benchmarks/videomae_loader.py --json benchmarks/results/videomae_loader.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import footage  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from matinee.data.clips import ClipPlan, ClipSpec  # noqa: E402
from matinee.data.loader import ClipLoader  # noqa: E402
from matinee.measure import machine  # noqa: E402
from matinee.models.masks import tube_mask  # noqa: E402
from matinee.pack.annotations import Annotations, Sample, VideoFile  # noqa: E402
from matinee.pack.profiles import make_profile  # noqa: E402
from matinee.pack.reading.reader import Pack  # noqa: E402
from matinee.pack.writing.writer import write_pack  # noqa: E402

FRAMES, STRIDE, SIZE, RATIO = 16, 4, 224, 0.9
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Usual(Dataset):  # type: ignore[type-arg]
    """Item i: the clip that matinee's plan number i describes."""

    file: Path
    plans: list[ClipPlan]
    scale: float  # picture of the file over that of the pack

    def __len__(self) -> int:
        return len(self.plans)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, np.ndarray]:
        import decord
        from PIL import Image

        plan, s = self.plans[index], self.scale
        reader = decord.VideoReader(str(self.file), num_threads=1, ctx=decord.cpu(0))
        whole = reader.get_batch(list(plan.frames)).asnumpy()
        box = plan.box
        corners = tuple(round(s * v) for v in (box.x, box.y, box.x + box.width, box.y + box.height))
        pictures = [
            Image.fromarray(frame).crop(corners).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
            for frame in whole
        ]
        stacked = np.concatenate([np.array(picture) for picture in pictures], axis=2)
        clip = torch.from_numpy(stacked).permute(2, 0, 1).contiguous().float().div(255)
        mean = torch.tensor(MEAN).repeat(FRAMES)[:, None, None]
        std = torch.tensor(STD).repeat(FRAMES)[:, None, None]
        clip = ((clip - mean) / std).view(FRAMES, 3, SIZE, SIZE).transpose(0, 1)
        grid = (SIZE // 16) ** 2
        hidden = np.hstack([np.zeros(grid - int(RATIO * grid)), np.ones(int(RATIO * grid))])
        np.random.shuffle(hidden)
        return clip, np.tile(hidden, (FRAMES // 2, 1)).flatten()


def usual(file: Path, plans: list[ClipPlan], scale: float, batch: int) -> Iterator[Any]:
    """Endless batches."""
    data = Usual(file, plans, scale)
    while True:
        yield from DataLoader(data, batch, num_workers=2, prefetch_factor=2, drop_last=True)


def ours(pack: Pack, spec: ClipSpec, batch: int, device: str) -> ClipLoader:
    return ClipLoader(
        pack, split="train", clip=spec, batch_size=batch, repeats=batch * 200, workers=2,
        device=device,
    )  # fmt: skip


def endless(loader: ClipLoader) -> Iterator[Any]:
    """Endless batches."""
    patches = (SIZE // 16) ** 2
    while True:
        for batch in loader:
            mask = batch.video  # on the meta device nothing can be drawn
            if not mask.is_meta:
                mask = tube_mask(FRAMES // 2, patches, RATIO, seeds=batch.seeds)
            yield batch.video, mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, required=True, help="result file")
    parser.add_argument("--rounds", type=int, default=10, help="batches of each arm")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=60, help="length of the footage")
    parser.add_argument("--keep", type=Path, help="folder for the footage, to be used again")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        files = {"original_1080p": (1920, 1080), "copy_320": (568, 320)}
        for name, (width, height) in files.items():
            if not (folder / f"{name}.mp4").exists():
                print(f"encoding {args.seconds} s of footage at {height} lines", file=sys.stderr)
                footage.write_x264(
                    folder / f"{name}.mp4", width=width, height=height, seconds=args.seconds
                )
        original = folder / "original_1080p.mp4"
        one = Annotations((VideoFile("a", original),), (Sample("a", "a", split="train"),))
        write_pack(folder / "videomae.pack", one, make_profile("layered", stride=STRIDE))
        pack = Pack(folder / "videomae.pack")
        spec = ClipSpec(
            frames=FRAMES, sampling="dense", stride=STRIDE, size=SIZE, crop="multi-scale"
        )
        with (
            ours(pack, spec, args.batch, "cpu") as loader,
            ours(pack, spec, args.batch, "meta") as apart,
        ):
            plans = [loader.plan(0, item) for item in range(loader.num_items)]
            height = pack.info(0).height
            arms = {"matinee": endless(loader), "matinee_device_apart": endless(apart)}
            for name, (_, lines) in files.items():
                file = folder / f"{name}.mp4"
                arms[f"usual_{name}"] = usual(file, plans, lines / height, args.batch)
            rates = measure(arms, args.rounds, args.batch)
    found = {name: median(values) for name, values in rates.items()}
    result = {
        "benchmark": "videomae_loader",
        "clip": {"frames": FRAMES, "stride": STRIDE, "size": SIZE, "mask": RATIO},
        "workers": 2,
        "batch": args.batch,
        "machine": machine.describe("matinee", "av", "torch", "decord", "pillow"),
        "clips_per_second": found,
        "quartiles": {
            name: [float(np.percentile(values, q)) for q in (25, 75)]
            for name, values in rates.items()
        },
        "times_faster": {
            f"{mine}_than_{name}": found[mine] / rate
            for name, rate in found.items()
            for mine in found
            if mine.startswith("matinee") and not name.startswith("matinee")
        },
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    for name, rate in found.items():
        print(f"{name:24} {rate:8.2f} clips/s")
    for name, ratio in result["times_faster"].items():
        print(f"{name}: {ratio:.1f}")


def measure(arms: dict[str, Iterator[Any]], rounds: int, batch: int) -> dict[str, list[float]]:
    """Clips a second of each arm in each round.

    Each arm runs alone while it is measured: what it has read ahead is taken first, so that its
    workers start from nothing, like the others'.
    """
    rates: dict[str, list[float]] = {name: [] for name in arms}
    order = np.random.default_rng(0)
    for _ in range(rounds):
        for name in (list(arms)[i] for i in order.permutation(len(arms))):
            for _ in range(5):  # read ahead while the others had their turn
                video, mask = next(arms[name])
            begin = time.perf_counter()
            for _ in range(4):
                video, mask = next(arms[name])
            rates[name].append(4 * batch / (time.perf_counter() - begin))
            assert video.shape == (batch, 3, FRAMES, SIZE, SIZE), video.shape
            assert video.dtype == torch.float32 and mask.shape[0] == batch
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rates


if __name__ == "__main__":
    main()
