"""EPIC-KITCHENS-100: actions (CLS) and multi-instance retrieval (MIR).

Source: arXiv 2006.13256; the files of github.com/epic-kitchens/epic-kitchens-100-annotations:
EPIC_100_train.csv, EPIC_100_validation.csv, EPIC_100_retrieval_train.csv and _test.csv (one
layout), EPIC_100_test_timestamps.csv (no classes), EPIC_100_verb_classes.csv and _noun_classes.csv.
"""

from __future__ import annotations

import re
from pathlib import Path

from matinee.errors import AnnotationError
from matinee.pack.annotations.base import Annotations, VideoFile
from matinee.pack.annotations.files import Request, check_path, check_span, csv_rows, seconds
from matinee.pack.annotations.samples import Samples

_LIST = re.compile(r"\[ *[0-9]{1,6}(?: *, *[0-9]{1,6})* *\]")
_NUMBER = re.compile(r"[0-9]{1,6}")
_CLASSES = {"verb": "EPIC_100_verb_classes.csv", "noun": "EPIC_100_noun_classes.csv"}


def read_epic100(request: Request) -> Annotations:
    """Actions: columns `verb` and `noun` hold the class keys, and the label is both.

    Narration as text, narration id as sample id, participant as the column `participant_id`. Times
    are the timestamps: the frame numbers beside them were counted at 60 a second (in all of the
    validation file), whatever the rate of the video. Videos are `<video id>.MP4`, in any folder.
    The files of the verb and noun classes are found beside the first file, or given; files without
    classes need none.

    Raises:
        AnnotationError: no files of classes, an unknown class, a narration id twice.
    """
    return _read(request, every_noun=False)


def read_epic100_mir(request: Request) -> Annotations:
    """Retrieval: as `read_epic100`, but `noun` holds all nouns of the narration, separated by |,
    by which retrieved clips are judged; no label.
    """
    return _read(request, every_noun=True)


def _read(request: Request, *, every_noun: bool) -> Annotations:
    given = {file.name: file for file in request.files}
    files = [file for file in request.files if file.name not in _CLASSES.values()]
    if not files:
        raise AnnotationError(f"{request.files[0]} lists classes only: give EPIC_100_train.csv too")
    keys: dict[str, dict[int, str]] = {}
    splits = Request(tuple(files), request.videos).splits()
    ids: list[str] = []
    names: list[str] = []
    times: tuple[list[float], list[float]] = [], []
    columns: dict[str, list[str | None]] = {
        name: [] for name in ("label", "split", "text", "verb", "noun", "participant_id")
    }
    videos: dict[str, VideoFile] = {}
    needed = ("narration_id", "video_id", "start_timestamp", "stop_timestamp")
    for file, split in zip(files, splits, strict=True):
        for where, row in csv_rows(file, needed):
            name = check_path(where, row["video_id"])
            if name not in videos:
                videos[name] = request.videos.named((name,), expected=f"{name}.MP4")
            start, end = (seconds(where, n, row[n]) for n in needed[2:])
            check_span(where, start, end)
            ids.append(row["narration_id"])
            names.append(videos[name].id)
            times[0].append(start)
            times[1].append(end)
            verb = noun = None
            if every_noun or "verb_class" in row or "noun_class" in row:
                keys = keys or {
                    what: _class_keys(given.get(name, files[0].parent / name), file)
                    for what, name in _CLASSES.items()
                }
                verb, noun = _classes(where, row, keys, every_noun)
            columns["verb"].append(verb)
            columns["noun"].append(noun)
            columns["label"].append(None if every_noun or not verb else f"{verb} {noun}")
            columns["split"].append(split)
            columns["text"].append(row.get("narration", "").strip() or None)
            columns["participant_id"].append(row.get("participant_id"))
    samples, notes = request.held_out(
        Samples.from_columns(
            names, ids=ids, label=columns.pop("label"), split=columns.pop("split"), start=times[0],
            end=times[1], text=columns.pop("text"), extra=columns,
        )
    )  # fmt: skip
    return Annotations(tuple(videos.values()), samples, notes=notes)


def _class_keys(file: Path, beside: Path) -> dict[int, str]:
    """Class number → key."""
    if not file.exists():
        raise AnnotationError(
            f"{beside} gives classes as numbers: {file.name} is needed, beside it or as a further "
            "file (epic100:FILE,FILE)"
        )
    keys: dict[int, str] = {}
    for where, row in csv_rows(file, ("id", "key")):
        if not _NUMBER.fullmatch(row["id"]) or not row["key"].strip() or "|" in row["key"]:
            raise AnnotationError(f"{where}: {row['id']!r}, {row['key']!r} is no class")
        keys[int(row["id"])] = row["key"].strip()
    return keys


def _classes(
    where: str, row: dict[str, str], keys: dict[str, dict[int, str]], every_noun: bool
) -> tuple[str, str]:
    """Verb and noun keys."""
    nouns = "all_noun_classes" if every_noun else "noun_class"
    found = []
    for what, column, layout in (
        ("verb", "verb_class", _NUMBER), ("noun", nouns, _LIST if every_noun else _NUMBER),
    ):  # fmt: skip
        cell = row.get(column)
        if cell is None or not layout.fullmatch(cell):
            expected = "a list such as [13, 3]" if layout is _LIST else "a number"
            raise AnnotationError(f"{where}: {column} {cell or ''!r:.60} is not {expected}")
        numbers = [int(number) for number in _NUMBER.findall(cell)]
        unknown = next((n for n in numbers if n not in keys[what]), None)
        if unknown is not None:
            raise AnnotationError(f"{where}: there is no {what} class {unknown}")
        found.append("|".join(dict.fromkeys(keys[what][number] for number in numbers)))
    return found[0], found[1]
