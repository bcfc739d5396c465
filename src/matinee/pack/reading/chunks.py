"""Where the frames of every video lie: the table of chunks in memory, about 30 bytes a chunk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.errors import PackError
from matinee.pack.reading.names import numbered
from matinee.pack.reading.table_file import TableFile, compact, narrow, whole

MAX_TABLE = 1 << 30  # bytes of a packet table

Place = tuple[int, tuple[int, ...], tuple[int, ...]]
"""A chunk, frames in it, and which of the frames asked for they are."""


class ChunkIndex:
    """The chunks of all videos, in order of video and time; videos are numbered.

    Every column is an array of the smallest integers that hold it.

    Args:
        sizes: of the pack's files, in bytes, int64 [files].
        codecs: how many decoder setups there are.

    Raises:
        PackError: damaged, or chunks that lie outside their file.
    """

    def __init__(self, table: TableFile, *, sizes: NDArray[np.int64], codecs: int) -> None:
        self._shown = table.shown
        codes, self.videos = numbered(whole(table.column("video")))
        limits = {
            "start_frame": (0, 1 << 40), "frames": (1, None), "fps_num": (1, None),
            "fps_den": (1, None), "codec": (0, codecs), "file": (0, len(sizes)),
            "table_file": (0, len(sizes)), "offset": (0, None), "size": (1, None),
            "table_offset": (0, None), "table_size": (1, MAX_TABLE),
        }  # fmt: skip
        c: dict[str, NDArray[Any]] = {}
        for name, (low, high) in limits.items():
            column = table.numbers(name)
            if len(column) and (column.min() < low or (high is not None and column.max() >= high)):
                raise PackError(f"{self._shown}: impossible values in column {name!r}")
            c[name] = narrow(column)
        for kind in ("", "table_"):
            room = sizes[c[f"{kind}file"]] - c[f"{kind}size"].astype(np.int64)
            if np.any(c[f"{kind}offset"].astype(np.int64) > room):
                raise PackError(f"{self._shown}: a chunk lies outside its file; it is damaged")
        in_order = (codes[1:] == codes[:-1]) & (c["start_frame"][1:] >= c["start_frame"][:-1])
        if not np.all(in_order | (codes[1:] > codes[:-1])):
            order = np.lexsort((c["start_frame"], codes))
            codes, c = codes[order], {name: column[order] for name, column in c.items()}
        if np.array_equal(c["file"], c["table_file"]):
            c["table_file"] = c["file"]
        self.columns = c
        bounds = np.searchsorted(codes, np.arange(len(self.videos) + 1))
        del codes
        behind = c["start_frame"].astype(np.int64) + c["frames"]  # the frame behind each chunk
        self.lengths = narrow(behind[bounds[1:] - 1])  # frames of each video
        follows = np.concatenate([[0], behind])[:-1]
        follows[bounds[:-1]] = 0
        if np.any(c["start_frame"] != follows):
            raise PackError(f"{self._shown}: a video has a gap between chunks; it is damaged")
        self.num_frames = int(c["frames"].sum(dtype=np.int64))
        self.seconds = float((c["frames"] * (c["fps_den"] / c["fps_num"])).sum())
        self._bounds: Sequence[int] | NDArray[Any] = compact(bounds)

    def __len__(self) -> int:
        return len(self.columns["frames"])

    def rate(self, video: int) -> Fraction:
        """Frames a second."""
        first = self._bounds[video]
        return _fraction(int(self.columns["fps_num"][first]), int(self.columns["fps_den"][first]))

    def rates(self) -> NDArray[np.float64]:
        """Frames a second of each video."""
        first = np.asarray(self._bounds)[:-1]
        c = self.columns
        return np.asarray(c["fps_num"][first] / c["fps_den"][first].astype(np.float64))

    def codec(self, video: int) -> int:
        """Which decoder setup the video begins with."""
        return int(self.columns["codec"][self._bounds[video]])

    def find(self, video: int, frames: Sequence[int]) -> list[Place]:
        """Which chunks hold `frames` (numbered within the video; repeats allowed), in order.

        Raises:
            IndexError: a frame outside the video.
        """
        first, last = int(self._bounds[video]), int(self._bounds[video + 1])
        starts = self.columns["start_frame"][first:last]
        low, high = (min(frames), max(frames)) if len(frames) else (0, 0)
        if low < 0 or high >= self.lengths[video]:
            outside = low if low < 0 else high
            raise IndexError(f"frame {outside} is outside video {self.videos[video]!r}")
        place = bisect_right(starts, low) - 1
        if place == bisect_right(starts, high) - 1:
            begin = int(starts[place])
            inside = tuple([frame - begin for frame in frames])
            return [(first + place, inside, tuple(range(len(inside))))] if inside else []
        places = np.searchsorted(starts, np.asarray(frames), side="right") - 1
        parts: dict[int, tuple[list[int], list[int]]] = {}
        for row, (frame, chunk) in enumerate(zip(frames, places.tolist(), strict=True)):
            held = parts.setdefault(chunk, ([], []))
            held[0].append(frame)
            held[1].append(row)
        found: list[Place] = []
        for chunk, (inside_video, rows) in sorted(parts.items()):
            begin = int(starts[chunk])
            found.append((first + chunk, tuple(f - begin for f in inside_video), tuple(rows)))
        return found


@lru_cache(4096)
def _fraction(numerator: int, denominator: int) -> Fraction:
    return Fraction(numerator, denominator)
