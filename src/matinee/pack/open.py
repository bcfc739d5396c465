"""Open a data set, whichever kind it is."""

from __future__ import annotations

from pathlib import Path

from matinee.errors import ConfigError
from matinee.pack.images import MANIFEST as IMAGES
from matinee.pack.images import ImageSet
from matinee.pack.mixture import Mixture, split_mixture
from matinee.pack.reader import Pack
from matinee.pack.storage import CACHE_BYTES, is_address

DataSet = Pack | Mixture | ImageSet


def open_data(
    path: str | Path, *, cache: str | Path | None = None, cache_bytes: int = CACHE_BYTES
) -> DataSet:
    """A pack of videos or an image set, told apart by the manifest that is there; or several packs
    with commas between, and weights: "a.pack:2,b.pack:1".

    Args:
        cache, cache_bytes: of packs elsewhere; see `Pack`.

    Raises:
        PackError: neither, unfinished, damaged, or made by a newer matinee.
        ConfigError: packs that cannot be mixed.
    """
    several = split_mixture(str(path))
    if several is None:
        return _open_one(path, cache, cache_bytes)
    names, weights = several
    packs = [_open_one(name, cache, cache_bytes) for name in names]
    for name, pack in zip(names, packs, strict=True):
        if isinstance(pack, ImageSet):
            raise ConfigError(f"{name} is an image set: only packs of videos can be mixed")
    return Mixture([pack for pack in packs if isinstance(pack, Pack)], weights)


def _open_one(path: str | Path, cache: str | Path | None, cache_bytes: int) -> Pack | ImageSet:
    if not is_address(path) and (Path(path) / IMAGES).exists():
        return ImageSet(path)
    return Pack(path, cache=cache, cache_bytes=cache_bytes)
