"""Where the videos are that an annotation file names: below a folder, or already in a pack."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from matinee.errors import AnnotationError
from matinee.media.source import exists
from matinee.pack.annotations.base import VideoFile, bystander, video_id


class VideoFinder:
    """Turns names into videos. A name without a file still gives a `VideoFile`, at the place where
    it was expected: packing refuses it there, with its path.

    Args:
        root: the folder that paths are relative to.
        held: ids of the videos of a pack, in place of the files below `root`.
    """

    def __init__(self, root: Path, held: Iterable[str] | None = None) -> None:
        self.root = root
        self._held = None if held is None else frozenset(held)
        self.where = f"below {root}" if held is None else f"in {root}"

    def at(self, path: str) -> VideoFile:
        """The video of a path, relative to the folder or absolute."""
        return VideoFile(video_id(self.root / path, self.root), self.root / path)

    def named(
        self, stems: Sequence[str], *, expected: str, hints: Sequence[str | None] = ()
    ) -> VideoFile:
        """The video at `expected`, or the only one called like one of `stems`: in any folder, but
        in none that contradicts those of `expected`.

        Args:
            stems: file names without their endings, the likeliest first.
            expected: path to report when there is none.
            hints: names of folders (a class, a split) that decide between several of one name.

        Raises:
            AnnotationError: several files have the name.
        """
        if expected in self._ids:
            return self.at(expected)
        for stem in stems:
            found: Sequence[str] = [n for n in self._by_stem.get(stem, ()) if _agree(n, expected)]
            if len(found) > 1:
                found = _hinted(found, hints)
            if len(found) > 1:
                raise AnnotationError(
                    f"{stem!r} could be {found[0]} or {found[1]} {self.where}: remove one, or give "
                    "a table with paths (--annotations table:FILE)"
                )
            if found:
                return self.at(found[0])
        return self.at(expected)

    def missing(self, videos: Iterable[VideoFile]) -> list[VideoFile]:
        """Those that are not there."""
        if self._held is not None:
            return [video for video in videos if video.id not in self._held]
        return [video for video in videos if not exists(video.path)]

    @cached_property
    def _ids(self) -> frozenset[str]:
        return frozenset(_walk(self.root)) if self._held is None else self._held

    @cached_property
    def _by_stem(self) -> dict[str, list[str]]:
        stems: dict[str, list[str]] = defaultdict(list)
        for name in sorted(self._ids):
            stems[PurePosixPath(name).stem].append(name)
        return stems


def plain(name: str | None) -> str:
    """A name as folders write it: small letters, one underscore for all that is no letter."""
    letters = (letter if letter.isalnum() else " " for letter in (name or "").lower())
    return "_".join("".join(letters).split())


def _agree(found: str, expected: str) -> bool:
    """Whether folders are equal, from the file upwards, as far as both paths have them."""
    upwards = (map(plain, reversed(PurePosixPath(p).parent.parts)) for p in (found, expected))
    return all(one == other for one, other in zip(*upwards, strict=False))


def _hinted(found: Sequence[str], hints: Sequence[str | None]) -> Sequence[str]:
    for hint in filter(None, map(plain, hints)):
        kept = [n for n in found if hint in map(plain, PurePosixPath(n).parent.parts)]
        found = kept or found
    return found


def _walk(root: Path) -> Iterator[str]:
    """Paths, below `root`, of all files that may be videos. Links to folders are followed once."""
    seen: set[tuple[int, int]] = set()
    stack = [""]
    while stack:
        base = stack.pop()
        folder = os.path.join(root, base)  # noqa: PTH118 - half a million files: strings are faster
        try:
            info = os.stat(folder)  # noqa: PTH116
            if (info.st_dev, info.st_ino) in seen:
                continue
            seen.add((info.st_dev, info.st_ino))
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = f"{base}/{entry.name}" if base else entry.name
                    if entry.is_dir():
                        if not entry.name.startswith("."):
                            stack.append(name)
                    elif bystander(PurePosixPath(entry.name)) is None:
                        yield name
        except OSError as error:
            raise AnnotationError(f"{folder} cannot be read: {error.strerror}") from None
