"""Open a data set, whichever kind it is."""

from __future__ import annotations

from pathlib import Path

from matinee.pack.images import MANIFEST as IMAGES
from matinee.pack.images import ImageSet
from matinee.pack.reader import Pack

DataSet = Pack | ImageSet


def open_data(path: str | Path) -> DataSet:
    """A pack of videos or an image set, told apart by the manifest that is there.

    Raises:
        PackError: neither, unfinished, damaged, or made by a newer matinee.
    """
    return ImageSet(path) if (Path(path) / IMAGES).exists() else Pack(path)
