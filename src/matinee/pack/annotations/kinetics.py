"""Kinetics 400, 600 and 700: a CSV a split, one clip of a YouTube video a row.

Source: Kinetics, arXiv 1705.06950; the files of github.com/cvdfoundation/kinetics-dataset: columns
label, youtube_id, time_start, time_end, split (and is_cc in some); test files without labels.
"""

from __future__ import annotations

from matinee.errors import AnnotationError
from matinee.pack.annotations.base import Annotations, VideoFile
from matinee.pack.annotations.files import (
    Request,
    check_path,
    check_span,
    csv_rows,
    seconds,
    split_of,
)
from matinee.pack.annotations.samples import Samples

_SPLITS = {"train": "train", "val": "val", "validate": "val", "validation": "val", "test": "test"}


def read_kinetics(request: Request) -> Annotations:
    """A sample is a whole file: the clip was cut out when it was downloaded.

    The file of a row is `<id>_<start>_<end>` with six digits each, or `<id>`, in any folder; its
    class folder decides between several. Where the column split is blank or missing, the name of
    the CSV file says it.
    """
    return _read(request, cut=True)


def read_kinetics_whole(request: Request) -> Annotations:
    """A sample is the span of the row in `<id>`, the whole YouTube video."""
    return _read(request, cut=False)


def _read(request: Request, *, cut: bool) -> Annotations:
    columns: dict[str, list[str | None]] = {"label": [], "split": []}
    names: list[str] = []
    starts: list[float | None] = []
    ends: list[float | None] = []
    videos: dict[str, VideoFile] = {}
    for file in request.files:
        for where, row in csv_rows(file, ("youtube_id", "time_start", "time_end")):
            name = check_path(where, row["youtube_id"])
            label = row.get("label", "").strip() or None
            given = row.get("split", "").strip()
            split = _SPLITS.get(given.lower()) if given else split_of(file)
            if given and split is None:
                raise AnnotationError(f"{where}: {given[:40]!r} is neither train, val nor test")
            start, end = (seconds(where, n, row[n]) for n in ("time_start", "time_end"))
            check_span(where, start, end)
            timed = f"{name}_{round(start):06d}_{round(end):06d}"
            video = request.videos.named(
                (timed, name) if cut else (name,),
                expected=f"{timed if cut else name}.mp4",
                hints=(label, split),
            )
            if cut and video.id in videos:
                raise AnnotationError(
                    f"{where}: {video.id} is the clip of another row already; if it is a whole "
                    "YouTube video, take --annotations kinetics-whole"
                )
            videos[video.id] = video
            names.append(video.id)
            columns["label"].append(label)
            columns["split"].append(split)
            starts.append(None if cut else start)
            ends.append(None if cut else end)
    samples, notes = request.held_out(
        Samples.from_columns(
            names, label=columns["label"], split=columns["split"], start=starts, end=ends
        )
    )
    return Annotations(tuple(videos.values()), samples, notes=notes)
