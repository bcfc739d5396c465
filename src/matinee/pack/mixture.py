"""`Mixture`: several packs as one, with a weight each.

`--data a.pack:2,b.pack:1` is one: a.pack gives two thirds of the clips. Without weights each pack
gives all its clips once an epoch. See Note [Mixtures] in data/order.py.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from matinee.errors import ConfigError, first_line
from matinee.media.decode import Box, Pixels
from matinee.pack.reading.clip import ClipPart
from matinee.pack.reading.reader import Pack, SampleInfo
from matinee.pack.reading.selection import SampleTable
from matinee.pack.reading.storage import split_address

_WEIGHT = re.compile(r"(.+):(\d+(?:\.\d+)?)")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST = re.compile(r"https?://(?:[^/?#]*@)?(?:\[[^]/]*\]|[^/?#:@\[]*)")  # without a port


class Mixture(SampleTable):
    """Samples of several packs, one pack after the other; what `Pack` says of one holds for all.

    Packs may differ in picture size, frame rate and codec. Classes are merged by name, in
    alphabetical order. Ids of samples and videos get the pack's name in front: `a/clip1`. Columns
    that only some packs have are empty for the others.

    `starts` are the rows at which packs begin, and the number of all; `names` theirs, by the last
    part of their path.

    Args:
        weights: of each pack, in training; None for each clip once an epoch.

    Raises:
        ConfigError: fewer than two packs, weights that are not positive or not one a pack, columns
            of one name that hold different kinds of values.
    """

    def __init__(self, packs: Sequence[Pack], weights: Sequence[float] | None = None) -> None:
        if len(packs) < 2:
            raise ConfigError(f"a mixture of {len(packs)} packs: at least 2")
        if weights is not None:
            if len(weights) != len(packs):
                raise ConfigError(f"{len(weights)} weights for {len(packs)} packs: one each")
            for weight in weights:
                if not 0 < weight < float("inf"):
                    raise ConfigError(f"weight {weight} of a pack: a positive number")
        self.packs = tuple(packs)
        self.weights = None if weights is None else tuple(float(weight) for weight in weights)
        self.names = _names([pack.name for pack in packs])
        self.path = " + ".join(str(pack.path) for pack in packs)
        self.classes = tuple(sorted({label for pack in packs for label in pack.classes}))
        digests = [str(pack.meta.get("source_digest")) for pack in packs]
        self.meta: dict[str, Any] = {
            "classes": list(self.classes),
            "source_digest": hashlib.sha256(" ".join(digests).encode()).hexdigest(),
        }
        self.starts = np.cumsum([0, *(len(pack) for pack in packs)])
        self.samples = self._concatenate()
        self.formats = tuple(fmt for pack in packs for fmt in pack.formats)
        self._first_format = np.cumsum([0, *(len(pack.formats) for pack in packs)]).tolist()
        self._at = {name: number for number, name in enumerate(self.names)}

    @property
    def name(self) -> str:
        """Those of the packs."""
        return " + ".join(self.names)

    def _concatenate(self) -> pa.Table:
        tables = []
        for name, pack in zip(self.names, self.packs, strict=True):
            columns: dict[str, Any] = {}
            for column in pack.samples.column_names:
                values = pack.samples.column(column)
                if pa.types.is_dictionary(values.type):
                    values = values.cast(values.type.value_type)
                if column in ("sample", "video"):
                    values = pc.binary_join_element_wise(pa.scalar(name, values.type), values, "/")
                columns[column] = values
            tables.append(pa.table(columns))
        try:
            return pa.concat_tables(tables, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise ConfigError(f"{self.path} cannot be mixed: {first_line(error)}") from None

    def digest(self) -> str:
        """As `Pack.digest`."""
        return hashlib.sha256(" ".join(pack.digest() for pack in self.packs).encode()).hexdigest()

    def _find(self, index: int) -> tuple[int, int]:
        """Number of the pack of a sample, and the sample's row there."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        return number, index - int(self.starts[number])

    def info(self, index: int) -> SampleInfo:
        """As `Pack.info`."""
        number, row = self._find(index)
        info = self.packs[number].info(row)
        name = self.names[number]
        return replace(
            info, id=f"{name}/{info.id}", video=f"{name}/{info.video}",
            codec=info.codec + self._first_format[number],
        )  # fmt: skip

    def captions(self, index: int) -> tuple[str, ...]:
        """As `Pack.captions`."""
        number, row = self._find(index)
        return self.packs[number].captions(row)

    def locate(self, video: str, frames: Sequence[int]) -> tuple[ClipPart, ...]:
        """As `Pack.locate`, of a video with its pack's name in front."""
        name, _, inside = video.partition("/")
        number = self._at[name]
        first = self._first_format[number]
        parts = self.packs[number].locate(inside, frames)
        if not first:
            return parts
        return tuple(
            replace(part, chunk=replace(part.chunk, codec=part.chunk.codec + first))
            for part in parts
        )

    def read(
        self,
        index: int,
        frames: Sequence[int],
        *,
        size: tuple[int, int] | None = None,
        box: Box | None = None,
        pixels: Pixels = "rgb",
    ) -> NDArray[np.uint8]:
        """As `Pack.read`."""
        number, row = self._find(index)
        return self.packs[number].read(row, frames, size=size, box=box, pixels=pixels)


def split_mixture(text: str) -> tuple[list[str], list[float] | None] | None:
    """Paths and weights of "a.pack:2,b.pack:1"; None where that names a single data set.

    Behind an address a comma separates only where another address or an existing path follows;
    else it belongs to the address. A number behind the host of an http address is its port.

    Raises:
        ConfigError: weights for some packs only.
    """
    if "," not in text or _exists(text):
        return None
    parts = _parts(text)
    shown = ",".join(shown_path(part) for part in parts)
    if not all(parts):
        raise ConfigError(f"--data {shown}: an empty name between commas")
    if len(parts) == 1:
        return None
    found = [_weight(part) for part in parts]
    if not any(found):
        return parts, None
    if not all(found):
        bare = shown_path(next(part for part, match in zip(parts, found, strict=True) if not match))
        raise ConfigError(
            f"--data {shown}: {bare!r} has no weight: give one to all, as in {bare}:1, or to none"
        )
    matches = [match for match in found if match]
    return [match[1] for match in matches], [float(match[2]) for match in matches]


def shown_path(path: str) -> str:
    """A path or address as messages may show it: without what is secret in an address."""
    scheme = _ADDRESS.match(path)
    if scheme is None:
        return path
    try:
        return split_address(path)[0]
    except ConfigError:
        return f"{scheme[0]}…"


def _parts(text: str) -> list[str]:
    parts: list[str] = []
    pieces = text.split(",")
    for number, piece in enumerate(pieces):
        name = piece.strip()
        match = _WEIGHT.fullmatch(name)
        inside = (
            (name or number < len(pieces) - 1)
            and parts
            and _ADDRESS.match(parts[-1])
            and not _ADDRESS.match(name)
            and not (name and (_exists(name) or (match and _exists(match[1]))))
        )
        if inside:
            parts[-1] = f"{parts[-1]},{piece.rstrip()}"
        else:
            parts.append(name)
    return parts


def _weight(part: str) -> re.Match[str] | None:
    match = _WEIGHT.fullmatch(part)
    is_port = match is not None and match[2].isdigit() and _HOST.fullmatch(match[1])
    return None if is_port else match


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a name that is too long, or holds a zero byte
        return False


def _names(packs: Sequence[str]) -> tuple[str, ...]:
    """A short name for each; equal ones are numbered."""
    stems = [name.removesuffix(".pack").replace("/", "-") or "pack" for name in packs]
    names: list[str] = []
    for stem in stems:
        name, number = stem, 2
        while name in names:
            name, number = f"{stem}-{number}", number + 1
        names.append(name)
    return tuple(names)
