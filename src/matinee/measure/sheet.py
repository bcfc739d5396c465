"""Contact sheets: a look at what is in a pack."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from matinee.data.sampling import uniform_segments
from matinee.errors import ConfigError
from matinee.extras import require
from matinee.files import naming
from matinee.pack.reader import Pack

_FRAMES = 6
_HEIGHT = 96  # pixels of a thumbnail


def contact_sheet(pack: Pack, path: Path, *, rows: int = 12) -> None:
    """Draw up to `rows` samples, spread over the classes, six frames each, to a PNG or SVG file.

    Raises:
        MissingExtra: matplotlib is not installed.
        ClipError: a sample cannot be read.
        ConfigError: another kind of file.
    """
    if path.suffix.lower() not in (".png", ".svg"):
        raise ConfigError(f"--sheet {path}: expected a name that ends in .png or .svg")
    figure_module = require("matplotlib.figure", "train")
    chosen = spread_samples(pack, rows)
    figure = figure_module.Figure(figsize=(11, 1.25 * len(chosen) + 0.4), dpi=110)
    axes = figure.subplots(len(chosen), _FRAMES, squeeze=False)
    for line, index in zip(axes, chosen, strict=True):
        info = pack.info(index)
        width = max(2, round(_HEIGHT * info.width / info.height / 2) * 2)
        frames = uniform_segments(info.num_frames, _FRAMES).tolist()
        images = pack.read(index, frames, size=(_HEIGHT, width))
        for axis, image, frame in zip(line, images, frames, strict=True):
            axis.imshow(image)
            axis.set_axis_off()
            axis.set_title(f"{float(frame / info.fps):.1f} s", fontsize=6, color="0.4", pad=1)
        label = info.label or (info.text or "")
        line[0].text(
            -0.05, 0.5, f"{label}\n{info.split or ''}\n{_shorten(info.id)}", fontsize=7,
            transform=line[0].transAxes, ha="right", va="center",
        )  # fmt: skip
    figure.subplots_adjust(left=0.2, right=0.99, top=0.97, bottom=0.01, wspace=0.03, hspace=0.15)
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        figure.savefig(path)


def spread_samples(pack: Pack, count: int) -> list[int]:
    """Up to `count` sample indices, taken from the classes in turn."""
    labels = np.array([label or "" for label in pack.samples.column("label").to_pylist()])
    queues = [np.flatnonzero(labels == name).tolist() for name in sorted(set(labels.tolist()))]
    chosen: list[int] = []
    while len(chosen) < min(count, len(pack)):
        for queue in queues:
            if queue and len(chosen) < count:
                chosen.append(queue.pop(0))
    return sorted(chosen, key=lambda i: (labels[i], i))


def _shorten(text: str, length: int = 28) -> str:
    return text if len(text) <= length else f"…{text[-length + 1 :]}"
