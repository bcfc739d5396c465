"""Which images of a source become samples: their classes, splits and order. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from matinee.errors import AnnotationError
from matinee.pack.annotations import Sample, hold_out
from matinee.pack.annotations.folders import SPLITS
from matinee.pack.images.source import ImageFile, Listing


@dataclass(frozen=True)
class ImagePlan:
    """`samples` by id, `files` where each comes from, `ignored` (path, reason) of the rest, `notes`
    sentences about what was decided.
    """

    samples: tuple[Sample, ...]
    files: dict[str, ImageFile]
    ignored: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def plan_images(
    listing: Listing, where: str, *, val_fraction: float, limit: int | None, archive: bool
) -> ImagePlan:
    """`<class>/<image>` or `<split>/<class>/<image>`: every image below a class folder is a sample.

    First folders that are split names (train, val, test) give the splits, otherwise the rule of
    `hold_out` does. The one folder around everything in an archive is left out of the names.

    Args:
        where: the source, for messages.
        limit: keep the first so many images of each class and split, by name.

    Raises:
        AnnotationError: no image, an empty class, or split folders beside others.
    """
    notes: list[str] = []
    prefix = _wrapping(listing.images) if archive else ""
    if prefix:
        notes.append(f"everything in {where} lies in {prefix}: classes are the folders inside")
    files = {image.id[len(prefix) :]: image for image in listing.images}
    outer = {_parts(name)[0] for name in files if len(_parts(name)) > 1}
    splits = {name for name in outer if name.lower() in SPLITS}
    if splits and splits != outer:
        raise AnnotationError(
            f"{where} holds the split {min(splits)!r} beside {min(outer - splits)!r}: expected "
            "only splits (train, val, test) or only classes at the top; move or rename one"
        )
    depth = 3 if splits else 2
    samples = [_sample(name, bool(splits)) for name in sorted(files) if len(_parts(name)) >= depth]
    loose = [(name, "not in a class folder") for name in files if len(_parts(name)) < depth]
    if not samples:
        raise AnnotationError(
            f"{where} holds no images in class folders: expected <class>/<image> or "
            "<split>/<class>/<image>"
        )
    _refuse_empty(listing.folders, prefix, samples, where, bool(splits))
    if not splits:
        samples = list(hold_out(samples, val_fraction)[0])
        held = sum(sample.split == "val" for sample in samples)
        notes.append(
            f"no splits given: the last {val_fraction:.0%} of each class's images, by name, are "
            f"held out as 'val' ({held} of {len(samples)}); --val-fraction 0 keeps all for training"
        )
    if limit is not None:
        kept = _first(samples, limit)
        notes.append(f"the first {limit} of each class and split: {len(kept)} of {len(samples)}")
        samples = kept
    return ImagePlan(
        tuple(samples),
        {sample.id: files[sample.id] for sample in samples},
        tuple(listing.ignored + loose),
        tuple(notes),
    )


def _parts(name: str) -> tuple[str, ...]:
    return PurePosixPath(name).parts


def _wrapping(images: Iterable[ImageFile]) -> str:
    """The folders around everything, "a/b/" or "": archives often hold one named like themselves.

    A folder is not around everything if it is a split, or if a class folder would be lost with it.
    """
    prefix = ""
    paths = [_parts(image.id) for image in images]
    while paths and all(len(path) >= 3 for path in paths):
        first = paths[0][0]
        if first.lower() in SPLITS or any(path[0] != first for path in paths):
            break
        prefix += f"{first}/"
        paths = [path[1:] for path in paths]
    return prefix


def _sample(name: str, by_split: bool) -> Sample:
    parts = _parts(name)
    sample = Sample(name, name, label=parts[1] if by_split else parts[0])
    return replace(sample, split=SPLITS[parts[0].lower()]) if by_split else sample


def _refuse_empty(
    folders: Iterable[str], prefix: str, samples: list[Sample], where: str, by_split: bool
) -> None:
    held = {str(PurePosixPath(*_parts(sample.id)[: 2 if by_split else 1])) for sample in samples}
    for folder in sorted(folders):
        inside = folder.removeprefix(prefix)
        parts = _parts(inside)
        is_class = len(parts) == 2 and parts[0].lower() in SPLITS if by_split else len(parts) == 1
        if folder.startswith(prefix) and inside and is_class and inside not in held:
            raise AnnotationError(
                f"class {parts[-1]!r} is empty: {folder} in {where} holds no image; remove the "
                "folder or add images"
            )


def _first(samples: Iterable[Sample], limit: int) -> list[Sample]:
    taken: Counter[tuple[str | None, str | None]] = Counter()
    kept = []
    for sample in samples:
        key = (sample.split, sample.label)
        taken[key] += 1
        if taken[key] <= limit:
            kept.append(sample)
    return kept
