"""Something-Something V2: JSON lists of videos, and the classes.

Source: arXiv 1706.04261; the files of the 20BN download: train.json and validation.json (id, label,
template, placeholders), test.json (id), labels.json (class → number).
"""

from __future__ import annotations

from typing import Any

from matinee.errors import AnnotationError
from matinee.pack.annotations.base import Annotations, VideoFile
from matinee.pack.annotations.files import Request, check_path, read_json, split_of, text_field
from matinee.pack.annotations.samples import Samples


def read_something(request: Request) -> Annotations:
    """The class is the template without its brackets, the text what the person was asked to do.

    With labels.json every class is looked up there, and its number becomes the column `class_id`.
    Videos are `<id>.webm`, in any folder.

    Raises:
        AnnotationError: another layout; a class that labels.json lacks; an id twice.
    """
    classes: dict[str, str] = {}
    entries: list[tuple[str, dict[str, Any], str | None]] = []
    for file in request.files:
        held = read_json(file)
        if isinstance(held, dict) and all(isinstance(v, (str, int)) for v in held.values()):
            classes.update({name: str(number) for name, number in held.items()})
        elif isinstance(held, list) and all(isinstance(e, dict) and "id" in e for e in held):
            split = split_of(file)
            entries += [(f"{file}, entry {n}", e, split) for n, e in enumerate(held, 1)]
        else:
            raise AnnotationError(
                f"{file} is neither a list of videos with ids nor labels.json of "
                "Something-Something V2"
            )
    if not entries:
        raise AnnotationError(f"{request.files[0]} lists classes only: give train.json too")
    videos: dict[str, VideoFile] = {}
    labels: list[str | None] = []
    numbers: list[str | None] = []
    texts: list[str | None] = []
    for where, entry, _ in entries:
        name = check_path(where, text_field(where, entry, "id") or "")
        video = request.videos.named((name,), expected=f"{name}.webm")
        if video.id in videos:
            raise AnnotationError(f"{where}: the id {name!r} stands there twice")
        videos[video.id] = video
        template = text_field(where, entry, "template")
        label = None if template is None else template.replace("[", "").replace("]", "")
        if label is not None and classes and label not in classes:
            raise AnnotationError(f"{where}: the class {label!r} is not in labels.json")
        labels.append(label)
        texts.append(text_field(where, entry, "label"))
        numbers.append(None if label is None else classes.get(label))
    samples, notes = request.held_out(
        Samples.from_columns(
            list(videos),
            label=labels,
            split=[split for *_, split in entries],
            text=texts,
            extra={"class_id": numbers} if classes else None,
        )
    )
    return Annotations(tuple(videos.values()), samples, notes=notes)
