"""A sample as a strip of frames inside a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.data.sampling import uniform_segments
from matinee.errors import MatineeError
from matinee.extras import require
from matinee.measure.report.rundata import RunData
from matinee.pack.open import DataSet, open_data

FRAMES = 8
_HEIGHT = 96


@dataclass(frozen=True)
class Strip:
    """`images` are (data URI, what it shows), or `error` says why there are none. `size` is their
    (height, width) in pixels; `texts` the sample's captions.
    """

    sample: str
    size: tuple[int, int]
    images: tuple[tuple[str, str], ...]
    texts: tuple[str, ...]
    error: str


def open_samples(run: RunData, rows: Iterable[dict[str, Any]]) -> tuple[DataSet | None, str]:
    """The data that a run's scores (else its config) speak of, or why there is none.

    `rows` are the predictions to be shown: their samples must be where they were.
    """
    path = run.scores.data if run.scores else run.config.data.path
    try:
        pack = open_data(path)
    except (MatineeError, OSError) as error:
        return None, f"No frames: {error}"
    names = pack.samples.column("sample")
    for row in rows:
        place = row["index"]
        if not 0 <= place < len(pack) or names[place].as_py() != row["sample"]:
            source = run.scores.source if run.scores else run.name
            return None, f"No frames: {pack.path} has other samples than {source} speaks of."
    return pack, ""


def read_strip(pack: DataSet, index: int) -> Strip:
    """Evenly spaced frames of a sample; a clip that cannot be read gives its error."""
    info = pack.info(index)
    size = (_HEIGHT, max(2, 2 * round(_HEIGHT * info.width / info.height / 2)))
    images: tuple[tuple[str, str], ...] = ()
    error = ""
    try:
        # Fewer frames than pictures: show each once.
        frames = np.unique(uniform_segments(info.num_frames, FRAMES)).tolist()
        many = len(frames) > 1
        video_THWC = pack.read(index, frames, size=size)
        images = tuple(
            (
                jpeg_uri(image_HWC),
                f"frame at {frame / float(info.fps):.2f} s" if many else "picture",
            )
            for frame, image_HWC in zip(frames, video_THWC, strict=True)
        )
    except MatineeError as problem:
        error = f"No frames: {problem}"
    return Strip(info.id, size, images, pack.captions(index), error)


def jpeg_uri(image_HWC: NDArray[np.uint8]) -> str:
    """A picture, uint8 RGB [H, W, 3], as the address of an <img> that needs no file."""
    buffer = io.BytesIO()
    image = require("PIL.Image", "train").fromarray(image_HWC)
    image.save(buffer, format="JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
