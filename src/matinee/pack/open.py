"""Open a data set, whichever kind it is."""

from __future__ import annotations

import os
import re
from pathlib import Path

from matinee.errors import ConfigError, PackError
from matinee.pack.images.image_set import MANIFEST as IMAGES
from matinee.pack.images.image_set import ImageSet
from matinee.pack.mixture import Mixture, shown_path, split_mixture
from matinee.pack.reading.reader import Pack
from matinee.pack.reading.storage import CACHE_BYTES, is_address

DataSet = Pack | Mixture | ImageSet


def open_data(
    path: str | Path, *, cache: str | Path | None = None, cache_bytes: int = CACHE_BYTES
) -> DataSet:
    """A pack of videos or an image set, told apart by the manifest that is there; or several packs
    with commas between, and weights: "a.pack:2,b.pack:1".

    Args:
        cache, cache_bytes: of the packs elsewhere; see `Pack`.

    Raises:
        PackError: neither, unfinished, damaged, or made by a newer matinee.
        ConfigError: packs that cannot be mixed, or a cache where all are local.
    """
    several = split_mixture(str(path))
    if several is None:
        return _open_one(path, cache, cache_bytes)
    names, weights = several
    if cache is not None and not any(is_address(name) for name in names):
        raise ConfigError(f"cache {cache}: all of {', '.join(names)} are local, and need none")
    packs = [_open_one(name, cache if is_address(name) else None, cache_bytes) for name in names]
    for name, pack in zip(names, packs, strict=True):
        if isinstance(pack, ImageSet):
            raise ConfigError(f"{name} is an image set: only packs of videos can be mixed")
    return Mixture([pack for pack in packs if isinstance(pack, Pack)], weights)


def _open_one(path: str | Path, cache: str | Path | None, cache_bytes: int) -> Pack | ImageSet:
    if is_address(path):
        path = _filled(str(path))
    elif (Path(path) / IMAGES).exists():
        return ImageSet(path)
    try:
        return Pack(path, cache=cache, cache_bytes=cache_bytes)
    except PackError as error:
        if not (isinstance(path, str) and is_address(path) and "," in path):
            raise
        raise PackError(
            f"{error} (the comma was taken as part of {shown_path(path)}: before another pack, it "
            "must be followed by an address or an existing path; within an http address, %2C is "
            "one that never separates)"
        ) from None


def typed_secret(path: str) -> bool:
    """Whether addresses in `path` hold a login or a query that is no environment variable."""
    return any(
        secret and not _VARIABLE.fullmatch(secret)
        for login, query in _SECRETS.findall(path)
        for secret in (login, query)
    )


def _filled(address: str) -> str:
    """An address with the values of the environment variables that it names, as ${NAME}.

    Raises:
        ConfigError: one that is not set.
    """

    def value(found: re.Match[str]) -> str:
        name = found[0][2:-1]
        if name not in os.environ:
            raise ConfigError(
                f"{shown_path(address)} needs the environment variable {name}, which is not set"
            )
        return os.environ[name]

    return _VARIABLE.sub(value, address)


_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_SECRETS = re.compile(r"[A-Za-z0-9]+://(?:([^/@?]*)@)?[^?]*?(?:\?([^?]*))?(?=,[A-Za-z0-9]+://|$)")
