"""The loader that fits a data set."""

from __future__ import annotations

from typing import Any, Literal

from matinee.data.decoders import Mode
from matinee.data.image_loader import ImageLoader
from matinee.data.loader import ClipLoader
from matinee.errors import ConfigError
from matinee.pack.images.image_set import ImageSet
from matinee.pack.mixture import Mixture
from matinee.pack.reading.reader import Pack


def open_loader(
    data: Pack | Mixture | ImageSet,
    *,
    clips: int = 1,
    workers: int | None = None,
    mode: Mode = "processes",
    threads: int | None = None,
    on_error: Literal["raise", "mask"] = "raise",
    resident: bool = True,
    pinned: bool = True,
    side_stream: bool = True,
    local_world: int | None = None,
    **settings: Any,
) -> ClipLoader | ImageLoader:
    """`ClipLoader` of a pack, `ImageLoader` of an image set, whose images nobody has to decode.

    Args:
        clips, workers, mode, threads, on_error, side_stream, local_world: as `ClipLoader` takes
            them, for packs.
        resident: as `ImageLoader` takes it, for image sets.
        settings: what both take.

    Raises:
        ConfigError: several clips of an image.
    """
    if isinstance(data, ImageSet):
        if clips != 1:
            raise ConfigError(f"clips {clips} of an image: there is one; take crops or repeats")
        return ImageLoader(data, resident=resident, pinned=pinned, **settings)
    return ClipLoader(
        data, clips=clips, workers=workers, mode=mode, threads=threads, on_error=on_error,
        pinned=pinned, side_stream=side_stream, local_world=local_world, **settings,
    )  # fmt: skip
