"""Contact sheets: a look at what is in a pack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from matinee.data.sampling import uniform_segments
from matinee.errors import ConfigError
from matinee.extras import require
from matinee.files import naming
from matinee.pack.images.image_set import ImageSet
from matinee.pack.mixture import Mixture
from matinee.pack.open import DataSet
from matinee.pack.reading.reader import Pack

_COLUMNS = 6
_HEIGHT = 96  # pixels of a thumbnail


@dataclass(frozen=True)
class _Line:
    """A line of a sheet: pictures, uint8 [H, W, 3], with a few words over each."""

    words: str
    pictures: list[NDArray[np.uint8]]
    titles: list[str]


def contact_sheet(data: DataSet, path: Path, *, rows: int = 12) -> None:
    """Draw a PNG or SVG file: up to `rows` samples, spread over the classes, six frames each; of an
    image set up to `rows` classes, six images each.

    Raises:
        MissingExtra: matplotlib is not installed.
        ClipError: a sample cannot be read.
        ConfigError: another kind of file.
    """
    if path.suffix.lower() not in (".png", ".svg"):
        raise ConfigError(f"--sheet {path}: expected a name that ends in .png or .svg")
    figure_module = require("matplotlib.figure", "train")
    lines = _of_images(data, rows) if isinstance(data, ImageSet) else _of_videos(data, rows)
    figure = figure_module.Figure(figsize=(11, 1.25 * len(lines) + 0.4), dpi=110)
    axes = figure.subplots(len(lines), _COLUMNS, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for row, line in zip(axes, lines, strict=True):
        for axis, picture, title in zip(row, line.pictures, line.titles, strict=False):
            axis.imshow(picture)
            axis.set_title(title, fontsize=6, color="0.4", pad=1)
        row[0].text(
            -0.05, 0.5, line.words, fontsize=7, transform=row[0].transAxes, ha="right", va="center"
        )
    figure.subplots_adjust(left=0.2, right=0.99, top=0.97, bottom=0.01, wspace=0.03, hspace=0.15)
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        figure.savefig(path)


def _of_videos(pack: Pack | Mixture, rows: int) -> list[_Line]:
    lines = []
    for index in spread_samples(pack, rows):
        info = pack.info(index)
        width = max(2, round(_HEIGHT * info.width / info.height / 2) * 2)
        frames = uniform_segments(info.num_frames, _COLUMNS).tolist()
        words = f"{info.label or (info.text or '')}\n{info.split or ''}\n{_shorten(info.id)}"
        pictures = list(pack.read(index, frames, size=(_HEIGHT, width)))
        lines.append(_Line(words, pictures, [f"{float(f / info.fps):.1f} s" for f in frames]))
    return lines


def _of_images(images: ImageSet, rows: int) -> list[_Line]:
    labels = np.array(images.samples.column("label").to_pylist())
    splits = images.samples.column("split").to_pylist()
    lines = []
    for name in images.classes[:rows]:
        held = np.flatnonzero(labels == name)
        chosen = held[uniform_segments(len(held), min(_COLUMNS, len(held)))].tolist()
        pictures = [np.array(images.pixels[i]) for i in chosen]
        lines.append(_Line(f"{name}\n{len(held)} images", pictures, [splits[i] for i in chosen]))
    return lines


def spread_samples(pack: Pack | Mixture, count: int) -> list[int]:
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
