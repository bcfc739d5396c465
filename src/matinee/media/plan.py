"""Packet planning: which packets reconstruct which frames. Pure functions, nothing is read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from matinee.media.packets import PacketTable

if TYPE_CHECKING:
    from numpy.typing import NDArray


def packets_to_feed(
    table: PacketTable, frames: Sequence[int] | NDArray[np.int64]
) -> list[list[int]]:
    """Smallest runs of packets that reconstruct `frames` (display order) exactly.

    Each run is an increasing list of packet indices that starts at a keyframe and ends at its
    last wanted frame; disposable packets that nobody asked for are left out. The decoder is
    flushed between runs.

    Raises:
        IndexError: a frame outside 0 … table.num_frames - 1.
    Source: H.264 (ITU-T Rec. H.264) §7.4.1, nal_ref_idc. See Note [Temporal layers].
    """
    # Plain Python: a clip has few frames, and NumPy's calls cost more than such loops.
    wanted = sorted({int(frame) for frame in frames})
    if not wanted:
        return []
    if wanted[0] < 0 or wanted[-1] >= table.num_frames:
        bad = wanted[0] if wanted[0] < 0 else wanted[-1]
        raise IndexError(f"frame {bad} is outside 0 … {table.num_frames - 1}")
    keys = table.key_frames
    if not len(keys) or wanted[0] < keys[0]:
        raise IndexError(f"frame {wanted[0]} is shown before the first keyframe")
    packets: list[int] = table.packet_of[wanted].tolist()
    runs: list[list[int]] = []
    begin = 0
    while begin < len(wanted):
        # The key to start from is the last one shown at or before the frame: a frame shown before
        # its preceding key (a leading picture of an open GOP) needs the GOP before that.
        group = bisect_right(keys, wanted[begin]) - 1
        end = len(wanted)
        if group + 1 < len(keys):
            end = bisect_left(wanted, int(keys[group + 1]), begin)
        mine = set(packets[begin:end])
        first = int(table.key_packets[group])
        skipped = table.disposable[first : max(mine) + 1].tolist()
        runs.append([p for p, skip in enumerate(skipped, first) if not skip or p in mine])
        begin = end
    return runs


def byte_ranges(
    offsets: Sequence[int],
    sizes: Sequence[int],
    *,
    max_gap: int = 256 << 10,
    max_length: int = 16 << 20,
) -> list[tuple[int, int]]:
    """Few (start, end) byte ranges that cover packets at `offsets` with `sizes` bytes each.

    Gaps of up to `max_gap` bytes (skipped packets, interleaved audio) are read along: one longer
    read is cheaper than two. A range of several packets has at most `max_length` bytes.
    """
    ranges: list[tuple[int, int]] = []
    start = end = -1
    for offset, size in sorted(zip(offsets, sizes, strict=True)):
        if start < 0:
            start, end = offset, offset + size
        elif offset - end <= max_gap and max(end, offset + size) - start <= max_length:
            end = max(end, offset + size)
        else:
            ranges.append((start, end))
            start, end = offset, offset + size
    return [*ranges, (start, end)] if start >= 0 else ranges
