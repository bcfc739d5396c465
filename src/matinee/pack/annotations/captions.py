"""Captions in JSON, as MSR-VTT has them: videos, and sentences about them.

Source: MSR-VTT, CVPR 2016, doi 10.1109/CVPR.2016.571: `{"videos": [{"video_id", "split", …}],
"sentences": [{"video_id", "caption"}]}`; and the list form of retrieval code, such as
github.com/salesforce/BLIP: `[{"video": "video0.mp4", "caption": "…" or ["…", …]}]`.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePosixPath
from typing import Any

from matinee.errors import AnnotationError
from matinee.pack.annotations.base import Annotations, VideoFile
from matinee.pack.annotations.files import Request, check_path, read_json, split_of, text_field
from matinee.pack.annotations.samples import Samples

_SPLITS = {"train": "train", "validate": "val", "val": "val", "validation": "val", "test": "test"}


def read_captions(request: Request) -> Annotations:
    """A sample is a whole video; its captions are the lines of its text.

    MSR-VTT's category becomes the column `category`. Videos are `<video id>`, with any ending, in
    any folder. A sentence of several lines becomes one line.

    Raises:
        AnnotationError: another layout, a video without a caption, a sentence about no video.
    """
    texts: dict[str, list[str]] = defaultdict(list)
    splits: dict[str, str | None] = {}
    categories: dict[str, str | None] = {}
    for file in request.files:
        held = read_json(file)
        if isinstance(held, dict) and {"videos", "sentences"} <= held.keys():
            for where, entry in _entries(f"{file}, video", held["videos"], "video_id"):
                name = check_path(where, str(entry["video_id"]))
                if name in splits:
                    raise AnnotationError(f"{where}: {name!r} stands there twice")
                given = text_field(where, entry, "split")
                if given is not None and given not in _SPLITS:
                    raise AnnotationError(f"{where}: the split {given[:40]!r} is not known")
                splits[name] = split_of(file) if given is None else _SPLITS[given]
                categories[name] = text_field(where, entry, "category")
            for where, entry in _entries(f"{file}, sentence", held["sentences"], "video_id"):
                name = str(entry["video_id"]).strip()
                if name not in splits:
                    raise AnnotationError(f"{where}: there is no video {name!r:.60}")
                texts[name] += _lines(where, entry.get("caption"))
        elif isinstance(held, list):
            for where, entry in _entries(f"{file}, entry", held, "video"):
                name = check_path(where, str(entry["video"]))
                splits.setdefault(name, split_of(file))
                categories.setdefault(name, None)
                texts[name] += _lines(where, entry.get("caption"))
        else:
            raise AnnotationError(
                f"{file} is neither of the layout of MSR-VTT (videos, sentences) nor a list of "
                "videos with captions"
            )
    videos: dict[str, VideoFile] = {}
    for name in splits:
        if not texts[name]:
            raise AnnotationError(f"{request.files[0]}: {name!r} has no caption")
        path = PurePosixPath(name)
        ending = "" if path.suffix else ".mp4"
        video = request.videos.named((path.stem, name), expected=f"{name}{ending}")
        if video.id in videos:
            raise AnnotationError(f"{request.files[0]}: {name!r} and another entry are {video.id}")
        videos[video.id] = video
    if not videos:
        raise AnnotationError(f"{request.files[0]} names no videos")
    samples, notes = request.held_out(
        Samples.from_columns(
            list(videos),
            split=list(splits.values()),
            text=["\n".join(texts[name]) for name in splits],
            extra={"category": list(categories.values())} if any(categories.values()) else None,
        )
    )
    return Annotations(tuple(videos.values()), samples, notes=notes)


def _entries(where: str, held: Any, key: str) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(held, list):
        raise AnnotationError(f"{where}s: a list was expected")
    for number, entry in enumerate(held, 1):
        if not isinstance(entry, dict) or type(entry.get(key)) not in (str, int):
            raise AnnotationError(f"{where} {number} has no {key!r}")
    return [(f"{where} {number}", entry) for number, entry in enumerate(held, 1)]


def _lines(where: str, caption: Any) -> list[str]:
    captions = caption if isinstance(caption, list) else [caption]
    if not all(isinstance(text, str) and text.strip() for text in captions):
        raise AnnotationError(f"{where} has no caption")
    return [" ".join(text.split()) for text in captions]
