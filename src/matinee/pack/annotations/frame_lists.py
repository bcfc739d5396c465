"""Lists of frame folders, as TSN and TSM read them: `path num_frames label`, a line a video.

Source: TSM, arXiv 1811.08383, and the tools of github.com/mit-han-lab/temporal-shift-module:
train_videofolder.txt, val_videofolder.txt, and category.txt with a class a line.
"""

from __future__ import annotations

import re
from fractions import Fraction

from matinee.errors import AnnotationError
from matinee.media.source import FrameFolder
from matinee.pack.annotations.base import Annotations, VideoFile
from matinee.pack.annotations.files import Request, check_path, split_of, text_lines
from matinee.pack.annotations.samples import Samples

_FPS = Fraction(30)
_NUMBER = re.compile("[0-9]{1,9}")


def read_frame_lists(request: Request) -> Annotations:
    """A sample is the first `num_frames` images of a folder, JPEG or PNG with numbered names.

    A file of lines that do not end in two numbers is taken as the list of classes; without one the
    numbers are the classes.

    Raises:
        AnnotationError: a malformed line, a folder twice, a number beyond the classes.
    """
    classes: list[str] = []
    rows: list[tuple[str, str, int, int, str | None]] = []
    for file in request.files:
        lines = list(text_lines(file))
        words = [line.rsplit(maxsplit=2) for _, line in lines]
        if not any(_is_row(parts) for parts in words):
            classes += [line for _, line in lines]
            continue
        for (number, line), parts in zip(lines, words, strict=True):
            where = f"{file}, line {number}"
            if not _is_row(parts):
                raise AnnotationError(
                    f"{where}: expected 'path num_frames label', found {line[:80]!r}"
                )
            path, frames, label = check_path(where, parts[0]), int(parts[1]), int(parts[2])
            if frames < 1:
                raise AnnotationError(f"{where}: {path} has no frames")
            if classes and label >= len(classes):
                raise AnnotationError(f"{where}: class {label}, but there are {len(classes)}")
            rows.append((where, path, frames, label, split_of(file)))
    if not rows:
        raise AnnotationError(f"{request.files[0]} lists classes only: give the lists of folders")
    fps = request.frames_fps or _FPS
    videos: dict[str, VideoFile] = {}
    for where, path, *_ in rows:
        place = request.videos.at(path)
        if place.id in videos:
            raise AnnotationError(f"{where}: {path} stands there twice")
        folder = request.videos.root / path
        videos[place.id] = VideoFile(place.id, FrameFolder(folder, fps))
    samples, notes = request.held_out(
        Samples.from_columns(
            list(videos),
            label=[classes[row[3]] if classes else str(row[3]) for row in rows],
            split=[row[4] for row in rows],
            end=[float(row[2] / fps) for row in rows],
        )
    )
    if request.frames_fps is None:
        notes = (
            f"folders of frames state no rate: {_FPS} frames a second are assumed, as most videos "
            "have; --frames-fps changes it (clips are taken by frames, so only times depend on it)",
            *notes,
        )
    return Annotations(tuple(videos.values()), samples, notes=notes)


def _is_row(parts: list[str]) -> bool:
    return len(parts) == 3 and all(_NUMBER.fullmatch(part) for part in parts[1:])
