"""One folder a class: `root/<class>/<video>`, or `root/<split>/<class>/<video>`."""

from __future__ import annotations

import os
from pathlib import Path

from matinee.errors import AnnotationError
from matinee.pack.annotations.base import Annotations, VideoFile, bystander, is_text, video_id
from matinee.pack.annotations.samples import Sample, hold_out

SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val",
           "validation": "val", "test": "test", "testing": "test"}  # fmt: skip


def read_class_folders(root: Path, *, val_fraction: float = 0.2) -> Annotations:
    """Every file below a class folder is a sample of that class.

    A first level that consists of split names only (train, val, test) gives the splits; otherwise
    `hold_out` does. Files of other kinds are listed as bystanders.

    Raises:
        AnnotationError: no such folder, no class folder, or a class without any candidate.
    """
    if not root.is_dir():
        raise AnnotationError(f"{root}: no such folder")
    top = _folders(root)
    if not top:
        raise AnnotationError(
            f"{root} has no folders: expected one folder a class ({root}/<class>/<video>), "
            "or give --annotations KIND:FILE (--annotations help lists the kinds)"
        )
    by_split = all(folder.name.lower() in SPLITS for folder in top)
    videos: list[VideoFile] = []
    samples: list[Sample] = []
    refused: list[tuple[str, str]] = []
    bystanders: list[tuple[str, str]] = [
        (str(file), bystander(file) or "not in a class folder") for file in _files(root)
    ]
    for outer in top:
        if by_split:
            bystanders += [(str(f), bystander(f) or "not in a class folder") for f in _files(outer)]
        for folder in _folders(outer) if by_split else [outer]:
            found = 0
            for file in _walk(folder, root):
                if reason := bystander(file):
                    bystanders.append((str(file), reason))
                    continue
                found += 1
                name = video_id(file, root)
                if not is_text(name):
                    refused.append((str(file), "has a name that is not UTF-8"))
                    continue
                videos.append(VideoFile(name, file))
                split = SPLITS[outer.name.lower()] if by_split else None
                samples.append(Sample(name, name, label=folder.name, split=split))
            if not found:
                raise AnnotationError(
                    f"class {folder.name!r} is empty: {folder} holds no video; "
                    "remove the folder or add videos"
                )
    if by_split:
        return Annotations(tuple(videos), samples, tuple(bystanders), refused=tuple(refused))
    rows, note = hold_out(samples, val_fraction)
    return Annotations(tuple(videos), rows, tuple(bystanders), (note,), tuple(refused))


def _folders(root: Path) -> list[Path]:
    return sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))


def _files(root: Path) -> list[Path]:
    return sorted(p for p in root.iterdir() if p.is_file())


def _walk(folder: Path, root: Path) -> list[Path]:
    """Files below a class folder. Links to folders are followed once, and never upwards."""

    def stop(error: OSError) -> None:
        raise AnnotationError(f"{error.filename} cannot be read: {error.strerror}")

    seen = {_identity(root), _identity(folder.parent)}
    found: list[Path] = []
    for base, folders, names in os.walk(folder, onerror=stop, followlinks=True):
        if _identity(base) in seen:
            folders.clear()
            continue
        seen.add(_identity(base))
        folders.sort()  # which of two links counts is not left to chance
        found += [Path(base, name) for name in names]
    return sorted(path for path in found if not path.is_dir())


def _identity(folder: str | Path) -> tuple[int, int]:
    info = os.stat(folder)  # noqa: PTH116
    return info.st_dev, info.st_ino
