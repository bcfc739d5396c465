"""Narrations of Ego4D as LaViLa and AVION keep them: a pickled list of (video, start, end, text).

Source: LaViLa, arXiv 2212.04501, and AVION, arXiv 2309.16669: ego4d_train.pkl, ego4d_val.pkl, and
files of generated narrations, where a list of texts stands in place of one.
"""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

import pyarrow as pa

from matinee.errors import AnnotationError
from matinee.pack.annotations.base import Annotations, VideoFile
from matinee.pack.annotations.files import Request, check_path
from matinee.pack.annotations.pickle_names import Array
from matinee.pack.annotations.plain_pickle import read_plain_pickle
from matinee.pack.annotations.samples import Samples

_BATCH = 1 << 16
_MAX_REFUSED = 10_000
_LAYOUT = "a list of (video, start, end, text) was expected"


def read_narrations(request: Request) -> Annotations:
    """A sample is a span in seconds; several texts become lines of one. Videos are `<video>.mp4`,
    in any folder.

    A span that ends before it begins is refused and listed; published files hold some. Beyond ten
    thousand they are only counted.

    Raises:
        AnnotationError: no such pickle (see Note [Plain pickles]), or a row of another layout.
    """
    table = _Table(request)
    for file, split in zip(request.files, request.splits(), strict=True):
        table.add(file, _rows(file), split)
    return table.annotations()


def _rows(file: Path) -> list[Any]:
    held = read_plain_pickle(file)
    if isinstance(held, Array) and held.value is not None:
        held = held.value.tolist()
    if not isinstance(held, (list, tuple)):
        raise AnnotationError(f"{file} holds a {type(held).__name__}; {_LAYOUT}")
    return list(held)


class _Table:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._known: dict[str | bytes, tuple[int, VideoFile]] = {}  # name → place in `_ids`
        self._ids: dict[str, int] = {}
        self._videos = array("i")  # of each sample, its video's place in `_ids`
        self._times = array("d"), array("d")
        self._texts: list[pa.Array] = []
        self._splits: list[pa.Array] = []
        self._refused: list[tuple[str, str]] = []
        self._more = 0  # refused beyond `_MAX_REFUSED`

    def add(self, file: Path, rows: list[Any], split: str | None) -> None:
        """Take rows over, and free them as they are taken: they are the larger form.

        Videos come first, and their names are copied: of the small objects that were made between
        the rows, each one that stays would keep a megabyte around it.
        """
        for number, row in enumerate(rows, 1):
            if type(row) not in (tuple, list) or len(row) < 4:
                raise AnnotationError(f"{file}, row {number}: {_LAYOUT}")
            if type(row[0]) not in (str, bytes) or row[0] not in self._known:
                self._add_video(f"{file}, row {number}", row[0])
        budget = file.stat().st_size  # texts may be shared, but not without bound
        starts, ends = self._times
        texts: list[str] = []
        count = len(self._videos)
        rows.reverse()
        number = 0
        while rows:
            row = rows.pop()
            number += 1
            place, video = self._known[row[0]]
            start, end = row[1], row[2]
            if type(start) not in (float, int) or type(end) not in (float, int):
                where = f"{file}, row {number}"
                raise AnnotationError(f"{where}: times {_shown(start)}, {_shown(end)}; {_LAYOUT}")
            if not (math.isfinite(start) and math.isfinite(end) and 0 <= start < end):
                sample = f"{video.id} (sample in row {number} of {file.name})"
                self._refuse(sample, f"spans {start:g}–{end:g} s, which is no span")
                continue
            text = (
                row[3] if type(row[3]) is str else _texts(f"{file}, row {number}", row[3], budget)
            )
            budget -= len(text) // 16
            if budget < 0:
                raise AnnotationError(f"{file} unfolds into more text than it holds")
            self._videos.append(place)
            starts.append(start)
            ends.append(end)
            texts.append(text)
            if len(texts) == _BATCH:
                self._texts.append(pa.array(texts, pa.string()))
                texts.clear()
        self._texts.append(pa.array(texts, pa.string()))
        added = len(self._videos) - count
        self._splits.append(pa.repeat(pa.scalar(split, pa.string()), added))

    def _refuse(self, sample: str, reason: str) -> None:
        if len(self._refused) < _MAX_REFUSED:
            self._refused.append((sample, reason))
        else:
            self._more += 1

    def _add_video(self, where: str, given: Any) -> None:
        name = _text(where, given)
        path = check_path(where, name)
        stem = path.removesuffix(".mp4")
        video = self._request.videos.named((stem, path), expected=f"{stem}.mp4")
        copied = name.encode() if isinstance(given, bytes) else name.encode().decode()
        self._known[copied] = self._ids.setdefault(video.id, len(self._ids)), video

    def annotations(self) -> Annotations:
        if not self._videos:
            raise AnnotationError(f"{self._request.files[0]} holds no narrations")
        names = pa.array(list(self._ids), pa.string())
        samples, notes = self._request.held_out(
            Samples.from_columns(
                pa.DictionaryArray.from_arrays(pa.array(self._videos), names),
                split=pa.chunked_array(self._splits),
                start=pa.array(self._times[0]),
                end=pa.array(self._times[1]),
                text=pa.chunked_array(self._texts),
            )
        )
        if self._more:
            more = (f"{self._more} more samples", "span nothing, as those before")
            self._refused.append(more)
        used = set(self._videos)
        videos = {video.id: video for place, video in self._known.values() if place in used}
        return Annotations(
            tuple(videos.values()), samples, notes=notes, refused=tuple(self._refused)
        )


def _shown(value: Any) -> str:
    """A text or number; of all else the type, for what nests can be printed without end."""
    if type(value) is str:
        return repr(value[:40])
    return repr(value) if type(value) in (int, float) else type(value).__name__


def _text(where: str, value: Any) -> str:
    """A text; strings of Python 2 are bytes."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise AnnotationError(f"{where}: a text that is not UTF-8") from None
    if not isinstance(value, str):
        raise AnnotationError(f"{where}: {type(value).__name__} in place of a text; {_LAYOUT}")
    return value


def _texts(where: str, value: Any, budget: int) -> str:
    if isinstance(value, Array) and value.value is not None:
        value = value.value.tolist()
    if not isinstance(value, (list, tuple)):
        return _text(where, value)
    if len(value) > budget:
        raise AnnotationError(f"{where}: unfolds into more texts than the file holds")
    texts = [" ".join(_text(where, text).split()) for text in value]
    return "\n".join(text for text in texts if text)
