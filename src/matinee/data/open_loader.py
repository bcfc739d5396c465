"""The loader that fits a data set."""

from __future__ import annotations

from typing import Any, Literal

from matinee.data.image_loader import ImageLoader
from matinee.data.loader import ClipLoader
from matinee.pack.images import ImageSet
from matinee.pack.reader import Pack


def open_loader(
    data: Pack | ImageSet,
    *,
    workers: int | None = None,
    mode: Literal["processes", "threads"] = "processes",
    on_error: Literal["raise", "mask"] = "raise",
    pinned: bool = True,
    side_stream: bool = True,
    **settings: Any,
) -> ClipLoader | ImageLoader:
    """`ClipLoader` of a pack, `ImageLoader` of an image set, whose images nobody has to decode.

    Args:
        workers, mode, on_error, pinned, side_stream: as `ClipLoader` takes them, for packs.
        settings: what both take.
    """
    if isinstance(data, ImageSet):
        return ImageLoader(data, **settings)
    return ClipLoader(
        data, workers=workers, mode=mode, on_error=on_error, pinned=pinned,
        side_stream=side_stream, **settings,
    )  # fmt: skip
