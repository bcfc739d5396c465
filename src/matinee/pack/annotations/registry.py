"""The kinds of annotations there are: `--annotations KIND:FILE[,FILE…]`.

Reading is by the kind that is asked for, never by guessing; looking at the content only helps to
say which kind a file is when it is not that one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from matinee.errors import AnnotationError, ConfigError
from matinee.pack.annotations.action_lists import read_hmdb51, read_ucf101
from matinee.pack.annotations.base import Annotations
from matinee.pack.annotations.captions import read_captions
from matinee.pack.annotations.epic100 import read_epic100, read_epic100_mir
from matinee.pack.annotations.files import Request, unreadable
from matinee.pack.annotations.finder import VideoFinder
from matinee.pack.annotations.frame_lists import read_frame_lists
from matinee.pack.annotations.kinetics import read_kinetics, read_kinetics_whole
from matinee.pack.annotations.narrations import read_narrations
from matinee.pack.annotations.something import read_something
from matinee.pack.annotations.table import read_table
from matinee.pack.annotations.webdataset import read_webdataset

_HEAD = 1 << 16
_FLAG = "--annotations"


@dataclass(frozen=True)
class Kind:
    """One kind: what it is, how it is asked for, and who reads it.

    `looks` names what the content of its files looks like; kinds of one look are told apart by the
    user alone.
    """

    what: str
    example: str
    read: Callable[[Request], Annotations]
    looks: str


def _read_table(request: Request) -> Annotations:
    file = request.only_file("table")
    return read_table(file, request.videos.root, val_fraction=request.val_fraction)


KINDS = {
    "table": Kind(
        "your own CSV: path,label[,split,start,end,text,...]",
        "table:labels.csv", _read_table, "table",
    ),
    "kinetics": Kind(
        "Kinetics CSVs; videos cut to the clips, <id>_<start>_<end>.mp4 or <id>.mp4",
        "kinetics:train.csv,val.csv", read_kinetics, "kinetics",
    ),
    "kinetics-whole": Kind(
        "Kinetics CSVs; whole YouTube videos, <id>.mp4",
        "kinetics-whole:train.csv,val.csv", read_kinetics_whole, "kinetics",
    ),
    "something": Kind(
        "Something-Something V2 JSON",
        "something:labels.json,train.json,validation.json", read_something, "something",
    ),
    "ucf101": Kind(
        "UCF101 split lists",
        "ucf101:classInd.txt,trainlist01.txt,testlist01.txt", read_ucf101, "ucf101",
    ),
    "hmdb51": Kind(
        "HMDB51 split lists, those of one split",
        "'hmdb51:splits/*_test_split1.txt'", read_hmdb51, "hmdb51",
    ),
    "tsm": Kind(
        "folders of frames in TSM's lists: path num_frames label (--frames-fps)",
        "tsm:category.txt,train_videofolder.txt,val_videofolder.txt", read_frame_lists, "tsm",
    ),
    "epic100": Kind(
        "EPIC-KITCHENS-100 actions: verb, noun, narration, times",
        "epic100:EPIC_100_train.csv,EPIC_100_validation.csv", read_epic100, "epic100",
    ),
    "epic100-mir": Kind(
        "EPIC-KITCHENS-100 retrieval: as epic100, with every noun of a narration",
        "epic100-mir:EPIC_100_retrieval_train.csv,EPIC_100_retrieval_test.csv", read_epic100_mir,
        "epic100",
    ),
    "narrations": Kind(
        "Ego4D narrations of LaViLa and AVION: pickled (video, start, end, text)",
        "narrations:ego4d_train.pkl,ego4d_val.pkl", read_narrations, "narrations",
    ),
    "captions": Kind(
        "caption JSON as of MSR-VTT: videos and sentences, or a list of video and caption",
        "captions:train_val_videodatainfo.json", read_captions, "captions",
    ),
    "webdataset": Kind(
        "WebDataset tars, read in place: key.mp4 with key.txt, key.json or key.cls",
        "webdataset:shards/{000..127}.tar", read_webdataset, "webdataset",
    ),
}  # fmt: skip


def describe_kinds() -> str:
    """The kinds, two lines each."""
    lines = [
        f"{_FLAG} KIND:FILE[,FILE…]; a FILE may hold * or {{000..127}}. Without it: one folder a "
        "class.",
        "",
    ]
    for name, kind in KINDS.items():
        lines += [f"  {name:<15} {kind.what}", f"  {'':<15} e.g. {kind.example}"]
    return "\n".join(lines)


def read_annotations(
    spec: str,
    videos: VideoFinder,
    *,
    val_fraction: float = 0.2,
    frames_fps: Fraction | None = None,
) -> Annotations:
    """Read `KIND:FILE[,FILE…]` about the videos that `videos` finds.

    Files that are not there remain among the videos, with a note that counts them.

    Raises:
        ConfigError: no such kind.
        AnnotationError: what the reader says, with another kind that the files look like; no video
            is there.
    """
    name, given, rest = spec.partition(":")
    if name not in KINDS:
        raise ConfigError(
            f"{_FLAG} {spec!r}: no kind {name!r}; there are {', '.join(KINDS)} "
            f"({_FLAG} help says more)"
        )
    kind = KINDS[name]
    if not given or not rest:
        raise ConfigError(f"{_FLAG} {name} needs files, e.g. {_FLAG} {kind.example}")
    if frames_fps is not None and name != "tsm":
        raise ConfigError(f"--frames-fps has no effect on {_FLAG} {name}: leave it out")
    files = _expand(rest)
    try:
        found = kind.read(Request(files, videos, val_fraction, frames_fps))
    except AnnotationError as error:
        raise AnnotationError(f"{error}{_hint(name, files)}") from None
    missing = videos.missing(found.videos)
    if not missing:
        return found
    first = missing[0].path
    if len(missing) == len(found.videos):
        raise AnnotationError(
            f"not one of the {len(missing)} videos of {files[0]} is {videos.where}: the first "
            f"would be {first}"
        )
    note = (
        f"{len(missing)} of {len(found.videos)} videos are not {videos.where} and will be refused; "
        f"the first is {first}"
    )
    return replace(found, notes=(*found.notes, note))


_BRACES = re.compile(r"\{([0-9]{1,9})\.\.([0-9]{1,9})\}")
_MAX_FILES = 1_000_000


def _expand(rest: str) -> tuple[Path, ...]:
    """Files of a comma-separated list, in which {000..127} counts and * stands for anything."""
    files: list[Path] = []
    for part in rest.split(","):
        for name in _count(part):
            path = Path(name)
            matched = [path]
            if "*" in name and not path.exists():
                root = Path(path.anchor or ".")
                matched = sorted(root.glob(str(path.relative_to(root) if path.anchor else path)))
            if not matched:
                raise AnnotationError(f"{name}: no file is called like that")
            files += matched
    for file in files:
        if not file.is_file():
            what = "is a folder, a file was expected" if file.is_dir() else "no such file"
            raise AnnotationError(f"{file}: {what}")
    return tuple(dict.fromkeys(files))


def _count(name: str) -> list[str]:
    match = _BRACES.search(name)
    if match is None:
        return [name]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < _MAX_FILES:
        raise ConfigError(f"{_FLAG}: {match[0]} counts to nothing")
    width = len(match[1]) if match[1].startswith("0") else 0
    before, after = name[: match.start()], name[match.end() :]
    return [f"{before}{number:0{width}d}{after}" for number in range(first, last + 1)]


def _hint(name: str, files: Sequence[Path]) -> str:
    """What to try if no file looks like the kind and one looks like another."""
    looks = [_look(file) for file in files[:100]]
    if KINDS[name].looks in looks or not any(looks):
        return ""
    look, file = next((look, file) for look, file in zip(looks, files, strict=False) if look)
    fitting = [other for other, kind in KINDS.items() if kind.looks == look]
    return f"; {file} looks like {' or '.join(fitting)}: {_FLAG} {fitting[0]}:{file}"


_COLUMNS = {
    "youtube_id": "kinetics", "narration_id": "epic100", "noun_class": "epic100", "path": "table",
}  # fmt: skip
_LINES = {
    "tsm": re.compile(r"\S.* [0-9]+ [0-9]+"),
    "ucf101": re.compile(r"[^/,]+/[^/,]+\.[a-z0-9]{3,4}( [0-9]+)?", re.IGNORECASE),
    "hmdb51": re.compile(r"[^/,]+\.[a-z0-9]{3,4} [012]", re.IGNORECASE),
}
_CLASSES = re.compile(r'\{\s*"[^"]+"\s*:\s*"?[0-9]')


def _look(file: Path) -> str | None:
    """What the beginning of a file looks like, if it is something known."""
    try:
        with file.open("rb") as opened:
            head = opened.read(_HEAD)
    except OSError as error:
        raise unreadable(file, error) from None
    if head[257:262] == b"ustar":
        return "webdataset"
    if head[:1] == b"\x80" or file.suffix in (".pkl", ".pickle"):
        return "narrations"
    text = head.decode("utf-8-sig", errors="ignore").strip()
    if text[:1] in ("{", "["):
        if '"template"' in text or _CLASSES.match(text):
            return "something"
        return "captions" if re.search(r'"(sentences|videos|caption)"\s*:', text) else None
    lines = text.splitlines()[: -1 if len(head) == _HEAD else None]
    for column in lines[0].split(",") if lines else ():
        if column in _COLUMNS:
            return _COLUMNS[column]
    return next((k for k, v in _LINES.items() if lines and all(map(v.fullmatch, lines))), None)
