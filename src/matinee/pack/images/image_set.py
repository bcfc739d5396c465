"""An image set on disk: small images of one size, held whole in memory or on the device.

images.json      version, size, classes, counts, what was refused or ignored and why; written last
samples.parquet  a row an image: sample (its path in the source), split, label
pixels.npy       uint8 [N, H, W, 3], RGB, in the order of the samples
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from matinee.errors import PackError, first_line
from matinee.media.image import resize
from matinee.pack.reading.reader import SampleInfo
from matinee.pack.reading.selection import SampleTable
from matinee.pack.tables import read_table

VERSION = 1
MANIFEST = "images.json"
TABLE, PIXELS = "samples.parquet", "pixels.npy"
COLUMNS = pa.schema(
    [
        pa.field("sample", pa.string(), nullable=False),
        ("split", pa.string()),
        ("label", pa.string()),
    ]
)


_FPS = Fraction(1)


class ImageSet(SampleTable):
    """A set of small images, made by `matinee pack --images`.

    `pixels` is uint8 [N, H, W, 3], RGB, mapped from the file: what is written to it changes memory,
    never the file. `samples`, `classes`, `meta` as in `Pack`.

    Raises:
        PackError: no such set, damaged, or made by a newer matinee.
    """

    path: Path

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.meta = read_image_manifest(self.path)
        self.classes = tuple(self.meta["classes"])
        self.samples = read_table(self.path / TABLE, COLUMNS)
        self.pixels = self._map_pixels()

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of every image."""
        return int(self.pixels.shape[1]), int(self.pixels.shape[2])

    def info(self, index: int) -> SampleInfo:
        """Image `index` as a video of one frame."""
        names, splits, labels = self._columns
        name, (height, width) = names[index], self.size
        return SampleInfo(
            id=name, video=name, label=labels[index], text=None, split=splits[index], first_frame=0,
            num_frames=1, fps=_FPS, width=width, height=height, codec=0,
        )  # fmt: skip

    def read(
        self, index: int, frames: Sequence[int], *, size: tuple[int, int] | None = None
    ) -> NDArray[np.uint8]:
        """Image `index` as `Pack.read` gives frames, for looking at data.

        Args:
            frames: nothing but zeros.
            size: (height, width) of the result; the stored size when None.

        Returns:
            uint8 [T, H, W, 3].
        """
        if any(frame != 0 for frame in frames):
            raise IndexError(f"frames {list(frames)} of an image")
        picture = np.array(self.pixels[index])
        if size is not None and size != self.size:
            picture = resize(picture, size)
        return np.repeat(picture[None], len(frames), axis=0)

    @cached_property
    def _columns(self) -> tuple[list[str], list[str | None], list[str | None]]:
        sample, split, label = (self.samples.column(name).to_pylist() for name in COLUMNS.names)
        return sample, split, label

    def _map_pixels(self) -> NDArray[np.uint8]:
        file = self.path / PIXELS
        try:
            pixels = np.load(file, mmap_mode="c", allow_pickle=False)
        except FileNotFoundError:
            raise PackError(f"{self.path} lacks {PIXELS}: the set is damaged") from None
        except (OSError, ValueError, EOFError, SyntaxError, OverflowError) as error:
            raise PackError(f"{file} is damaged: {first_line(error)}") from None
        shape = (len(self), *self.meta["size"], 3)
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != shape:
            raise PackError(f"{file} does not hold uint8 {list(shape)}: the set is damaged")
        return pixels


def read_image_manifest(path: Path) -> dict[str, Any]:
    """The content of images.json, checked.

    Raises:
        PackError: missing, damaged, or made by a newer matinee.
    """
    file = path / MANIFEST
    try:
        meta = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise PackError(f"{path} is no image set: it has no {MANIFEST}") from None
    except (ValueError, OSError) as error:
        raise PackError(f"{file} is damaged: {first_line(error)}") from None
    if not isinstance(meta, dict) or meta.get("format") != "matinee images":
        raise PackError(f"{file} does not describe a matinee image set")
    version = meta.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise PackError(
            f"{path} has image set version {version}, this matinee reads up to {VERSION}: "
            "upgrade matinee"
        )
    size, classes = meta.get("size"), meta.get("classes")
    if not (isinstance(size, list) and len(size) == 2 and all(isinstance(n, int) for n in size)):
        raise PackError(f"{file} is damaged: it has no size")
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise PackError(f"{file} is damaged: it has no list of classes")
    return meta
