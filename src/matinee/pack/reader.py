"""Open a pack: which samples there are, and where the frames of any clip lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from matinee.errors import ClipError, MediaError, PackError
from matinee.media.decode import Box, Pixels, frame_bytes
from matinee.media.packets import VideoFormat
from matinee.pack.clip import ClipPart, ClipReader, Located
from matinee.pack.format import CHUNKS, CODECS, FILES, SAMPLES, read_manifest
from matinee.pack.selection import SampleTable
from matinee.pack.tables import read_table


@dataclass(frozen=True)
class SampleInfo:
    """One sample: a span of frames of a video, and what is said about it.

    The sample's frames are `first_frame` … `first_frame + num_frames - 1` of the video; `width`,
    `height` are the stored picture's, in pixels.
    """

    id: str
    video: str
    label: str | None
    text: str | None
    split: str | None
    first_frame: int
    num_frames: int
    fps: Fraction
    width: int
    height: int
    codec: int


class Pack(SampleTable):
    """A dataset on disk, made by `matinee pack` or `matinee index`.

    `samples` is a pyarrow Table (sample, video, start_s, end_s, split, label, text, …), `classes`
    the labels in order, `formats` the decoder setups, `meta` the content of pack.json.

    Raises:
        PackError: no such pack, unfinished, damaged, or made by a newer matinee.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.meta = read_manifest(self.path)
        self.classes: tuple[str, ...] = tuple(self.meta["classes"])
        self.samples: pa.Table = read_table(self.path / "samples.parquet", SAMPLES)
        self.formats = _formats(self.path)
        self._files, self._sizes = _files(self.path)
        self._read_chunks()
        self._readers: ClipReader | None = None

    def _read_chunks(self) -> None:
        table = read_table(self.path / "chunks.parquet", CHUNKS)
        videos = table.column("video").combine_chunks().dictionary_encode()
        names = videos.dictionary.to_pylist()
        codes = videos.indices.to_numpy(zero_copy_only=False)
        columns = {
            name: table.column(name).to_numpy()
            for name in CHUNKS.names
            if name not in ("video", "start_s")
        }
        order = np.lexsort((columns["start_frame"], codes))
        self._chunks: dict[str, NDArray[Any]] = {k: v[order] for k, v in columns.items()}
        bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
        self._rows = {name: (int(bounds[i]), int(bounds[i + 1])) for i, name in enumerate(names)}
        c = self._chunks
        checks = {
            "start_frame": (0, None), "frames": (1, None), "fps_num": (1, None),
            "fps_den": (1, None), "codec": (0, len(self.formats)), "file": (0, len(self._files)),
            "table_file": (0, len(self._files)), "offset": (0, None), "size": (1, None),
            "table_offset": (0, None), "table_size": (1, 1 << 30),
        }  # fmt: skip
        for name, (low, high) in checks.items():
            column = c[name]
            if len(column) and (column.min() < low or (high is not None and column.max() >= high)):
                raise PackError(f"{self.path}: impossible values in column {name!r} of the chunks")
        sizes = np.array(self._sizes, dtype=np.int64)
        for kind in ("", "table_"):
            room = sizes[c[f"{kind}file"]] - c[f"{kind}size"]
            if np.any(c[f"{kind}offset"] > room):
                raise PackError(f"{self.path}: a chunk lies outside its file; the pack is damaged")
        first = np.zeros(len(order), bool)
        first[bounds[:-1]] = True
        follows = np.concatenate([[0], (c["start_frame"] + c["frames"])[:-1]])
        if np.any(c["start_frame"] != np.where(first, 0, follows)):
            raise PackError(f"{self.path}: a video has a gap between chunks; the pack is damaged")

    @property
    def num_videos(self) -> int:
        return len(self._rows)

    @property
    def num_chunks(self) -> int:
        return len(self._chunks["frames"])

    @property
    def num_frames(self) -> int:
        """Frames of all videos together."""
        return int(self._chunks["frames"].sum(dtype=np.int64))

    @property
    def seconds(self) -> float:
        """Length of all videos together, in seconds."""
        c = self._chunks
        return float((c["frames"] * (c["fps_den"] / c["fps_num"])).sum())

    def info(self, index: int) -> SampleInfo:
        """Everything about sample `index` that planning a clip needs.

        Raises:
            PackError: the sample speaks of a video the pack does not hold.
        """
        row = {
            name: self.samples.column(name)[index].as_py()
            for name in ("sample", "video", "start_s", "end_s", "split", "label", "text")
        }
        first, last = self._span(row["sample"], row["video"])
        c = self._chunks
        total = int(c["start_frame"][last - 1] + c["frames"][last - 1])
        fps = Fraction(int(c["fps_num"][first]), int(c["fps_den"][first]))
        start, end = frame_span(row["start_s"], row["end_s"], fps, total)
        fmt = self.formats[c["codec"][first]]
        return SampleInfo(
            id=row["sample"],
            video=row["video"],
            label=row["label"],
            text=row["text"],
            split=row["split"],
            first_frame=start,
            num_frames=end - start,
            fps=fps,
            width=fmt.width,
            height=fmt.height,
            codec=int(c["codec"][first]),
        )

    def _span(self, sample: str, video: str) -> tuple[int, int]:
        if video not in self._rows:
            raise PackError(f"sample {sample!r} is of video {video!r}, which {self.path} lacks")
        return self._rows[video]

    def locate(self, video: str, frames: Sequence[int]) -> tuple[ClipPart, ...]:
        """Which chunks hold `frames` (numbered within the video; repeats allowed).

        Raises:
            IndexError: a frame outside the video.
        """
        first, last = self._span("", video)
        c = self._chunks
        starts = c["start_frame"][first:last]
        parts: dict[int, tuple[list[int], list[int]]] = {}
        for row, frame in enumerate(frames):
            place = int(np.searchsorted(starts, frame, side="right")) - 1
            chunk = first + place
            inside = int(frame - starts[place]) if place >= 0 else -1
            if not 0 <= inside < c["frames"][chunk]:
                raise IndexError(f"frame {frame} is outside video {video!r}")
            held = parts.setdefault(chunk, ([], []))
            held[0].append(inside)
            held[1].append(row)
        return tuple(
            ClipPart(self._located(chunk), tuple(inside), tuple(rows))
            for chunk, (inside, rows) in sorted(parts.items())
        )

    def _located(self, chunk: int) -> Located:
        c = self._chunks
        return Located(
            file=self._files[c["file"][chunk]],
            offset=int(c["offset"][chunk]),
            size=int(c["size"][chunk]),
            table_file=self._files[c["table_file"][chunk]],
            table_offset=int(c["table_offset"][chunk]),
            table_size=int(c["table_size"][chunk]),
            codec=int(c["codec"][chunk]),
        )

    def read(
        self,
        index: int,
        frames: Sequence[int],
        *,
        size: tuple[int, int] | None = None,
        box: Box | None = None,
        pixels: Pixels = "rgb",
    ) -> NDArray[np.uint8]:
        """Decode frames of one sample, for looking at data; `ClipLoader` is the fast way.

        Args:
            frames: numbers within the sample, 0 … num_frames - 1.
            size: (height, width) of the result; the stored size when None.

        Returns:
            uint8 [T, H, W, 3] for "rgb", [T, H * W * 3 / 2] for "i420".

        Raises:
            ClipError: the data is damaged or gone.
        """
        info = self.info(index)
        for frame in frames:
            if not 0 <= frame < info.num_frames:
                raise IndexError(f"frame {frame} is outside sample {info.id!r}: {info.num_frames}")
        size = size or (info.height, info.width)
        out = np.empty((len(frames), frame_bytes(size, pixels)), np.uint8)
        parts = self.locate(info.video, [info.first_frame + frame for frame in frames])
        if self._readers is None:
            self._readers = ClipReader(self.formats)
        try:
            self._readers.read(parts, out, box=box, size=size, pixels=pixels)
        except MediaError as error:
            raise ClipError(info.id, parts[0].chunk.file, str(error)) from None
        return out.reshape(len(frames), *size, 3) if pixels == "rgb" else out


def frame_span(
    start_s: float | None, end_s: float | None, fps: Fraction, total: int
) -> tuple[int, int]:
    """First frame and one past the last of a span in seconds; never empty, never outside.

    A frame belongs to the span if it is shown at `start_s` or later and before `end_s`.
    """
    rate = float(fps)
    if not all(value is None or math.isfinite(value) for value in (start_s, end_s)):
        raise PackError(f"a sample spans {start_s}–{end_s} s; the pack is damaged")
    start = 0 if start_s is None else int(np.ceil(start_s * rate - 1e-6))
    end = total if end_s is None else int(np.ceil(end_s * rate - 1e-6))
    start = min(max(start, 0), total - 1)
    return start, min(max(end, start + 1), total)


def _formats(path: Path) -> tuple[VideoFormat, ...]:
    formats = []
    for row in read_table(path / "codecs.parquet", CODECS).to_pylist():
        if not (0 < row["width"] <= 16384 and 0 < row["height"] <= 16384):
            raise PackError(f"{path}: impossible picture of {row['width']}x{row['height']}")
        if row["matrix"] not in ("bt601", "bt709"):
            raise PackError(f"{path}: unknown colour matrix {row['matrix']!r}")
        formats.append(VideoFormat(**{name: row[name] for name in CODECS.names}))
    return tuple(formats)


def _files(path: Path) -> tuple[list[str], list[int]]:
    """Absolute paths and sizes of the files; one that is gone or changed is an error."""
    files, sizes = [], []
    root = path.resolve()
    for row in read_table(path / "files.parquet", FILES).to_pylist():
        file = Path(row["path"])
        own = not file.is_absolute()
        if own:
            file = root / file
            if not file.resolve().is_relative_to(root):
                raise PackError(f"{path} refers to {row['path']!r}, outside itself")
        try:
            stat = file.stat()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise PackError(f"{file}, which {path} needs, is gone: {reason}") from None
        if own and stat.st_size != row["size"]:
            raise PackError(
                f"{file} is damaged: it has {stat.st_size} bytes, {row['size']} were written"
            )
        if not own and (stat.st_size, stat.st_mtime_ns) != (row["size"], row["mtime_ns"]):
            raise PackError(f"{file} changed since {path} was made: index it again")
        files.append(str(file))
        sizes.append(stat.st_size)
    return files, sizes
