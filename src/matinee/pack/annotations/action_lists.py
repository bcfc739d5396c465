"""The split lists of UCF101 and HMDB51.

Source: UCF101, arXiv 1212.0402, `ucfTrainTestlist`: trainlist01.txt (`Class/v_Class_g01_c01.avi 1`)
testlist01.txt (no number), classInd.txt (`1 Class`). HMDB51, ICCV 2011,
doi 10.1109/ICCV.2011.6126543, `testTrainMulti_7030_splits`: `<class>_test_split1.txt` with
`<video>.avi 1` (train), 2 (test), 0 (in neither).
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from matinee.errors import AnnotationError
from matinee.pack.annotations.base import Annotations, VideoFile
from matinee.pack.annotations.files import Request, check_path, split_of, text_lines
from matinee.pack.annotations.samples import Samples

_HMDB = re.compile(r"(?P<label>.+)_test_split(?P<number>[0-9]+)\.txt")


def read_ucf101(request: Request) -> Annotations:
    """The class is the folder of a path; with classInd.txt its number is compared.

    The same video in two lists (two of the three splits given) is an error.
    """
    classes: dict[str, str] = {}
    rows: list[tuple[str, str, str | None, str | None]] = []
    for file in request.files:
        for number, line in text_lines(file):
            where = f"{file}, line {number}"
            first, _, last = line.rpartition(" ")
            if "/" not in line and first.isdecimal():
                classes[last] = first
            elif last.isdecimal() and first:
                rows.append((where, first, last, split_of(file)))
            else:
                rows.append((where, line, None, split_of(file)))
    found = _Found(request)
    for where, path, given, split in rows:
        label = PurePosixPath(path).parent.name
        if not label:
            raise AnnotationError(f"{where}: {path!r} has no class folder")
        if classes and label not in classes:
            raise AnnotationError(f"{where}: the class {label!r} is not in classInd.txt")
        if given is not None and classes and classes[label] != given:
            raise AnnotationError(
                f"{where}: the class {label!r} is number {classes[label]} in classInd.txt, "
                f"{given} here"
            )
        found.add(where, path, label, split)
    return found.annotations()


def read_hmdb51(request: Request) -> Annotations:
    """One list a class. Videos of neither part (0) are left out."""
    found = _Found(request)
    numbers: set[str] = set()
    for file in request.files:
        match = _HMDB.fullmatch(file.name)
        if match is None:
            raise AnnotationError(f"{file}: the lists are called <class>_test_split<number>.txt")
        numbers.add(match["number"])
        if len(numbers) > 1:
            raise AnnotationError(
                f"lists of splits {' and '.join(sorted(numbers))} are given: take one, such as "
                "'hmdb51:FOLDER/*_test_split1.txt'"
            )
        for number, line in text_lines(file):
            where = f"{file}, line {number}"
            name, _, part = line.rpartition(" ")
            if part not in ("0", "1", "2") or not name:
                raise AnnotationError(
                    f"{where}: expected '<video> <0, 1 or 2>', found {line[:80]!r}"
                )
            if part != "0":
                split = "train" if part == "1" else "test"
                found.add(where, f"{match['label']}/{name.strip()}", match["label"], split)
    return found.annotations()


class _Found:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._videos: dict[str, VideoFile] = {}
        self._labels: list[str | None] = []
        self._splits: list[str | None] = []

    def add(self, where: str, path: str, label: str, split: str | None) -> None:
        path = check_path(where, path)
        stem = PurePosixPath(path).stem
        video = self._request.videos.named((stem,), expected=path, hints=(label,))
        if video.id in self._videos:
            raise AnnotationError(
                f"{where}: {path} is in another list too: give those of one split"
            )
        self._videos[video.id] = video
        self._labels.append(label)
        self._splits.append(split)

    def annotations(self) -> Annotations:
        if not self._videos:
            raise AnnotationError(f"{self._request.files[0]} names no videos")
        samples, notes = self._request.held_out(
            Samples.from_columns(list(self._videos), label=self._labels, split=self._splits)
        )
        return Annotations(tuple(self._videos.values()), samples, notes=notes)
