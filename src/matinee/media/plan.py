"""Packet planning: which packets reconstruct which frames. Pure functions, nothing is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from matinee.media.packets import PacketTable

if TYPE_CHECKING:
    from numpy.typing import NDArray


def packets_to_feed(
    table: PacketTable, frames: Sequence[int] | NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Smallest runs of packets that reconstruct `frames` (display order) exactly.

    Each run is an increasing array of packet indices that starts at a keyframe and ends at its
    last wanted frame; disposable packets that nobody asked for are left out. The decoder is
    flushed between runs.

    Raises:
        IndexError: a frame outside 0 … table.num_frames - 1.
    Source: H.264 (ITU-T Rec. H.264) §7.4.1, nal_ref_idc. See Note [Temporal layers].
    """
    wanted = sorted({int(frame) for frame in frames})
    if not wanted:
        return []
    if wanted[0] < 0 or wanted[-1] >= table.num_frames:
        bad = wanted[0] if wanted[0] < 0 else wanted[-1]
        raise IndexError(f"frame {bad} is outside 0 … {table.num_frames - 1}")
    if not len(table.key_frames) or wanted[0] < table.key_frames[0]:
        raise IndexError(f"frame {wanted[0]} is shown before the first keyframe")
    # The key to start from is the last one shown at or before the frame: a frame shown before its
    # preceding key (a leading picture of an open GOP) needs the GOP before that.
    groups = np.searchsorted(table.key_frames, wanted, side="right") - 1
    packets = table.packet_of[wanted]
    runs: list[NDArray[np.int64]] = []
    for group in dict.fromkeys(groups.tolist()):
        mine = packets[groups == group]
        first, last = int(table.key_packets[group]), int(mine.max())
        needed = ~table.disposable[first : last + 1]
        needed[mine - first] = True
        runs.append(np.flatnonzero(needed) + first)
    return runs


def byte_ranges(
    offset: NDArray[np.int64], size: NDArray[np.int64], *, max_gap: int = 256 * 1024
) -> list[tuple[int, int]]:
    """Few (start, end) byte ranges that cover packets at `offset` with `size` bytes each.

    Gaps of up to `max_gap` bytes (skipped packets, interleaved audio) are read along: one longer
    read is cheaper than two.
    """
    if not len(offset):
        return []
    ends = offset + size
    first, last = int(offset.min()), int(ends.max())
    if last - first - int(size.sum()) <= max_gap:
        return [(first, last)]
    order = np.argsort(offset, kind="stable")
    ranges: list[tuple[int, int]] = []
    for start, end in zip(offset[order].tolist(), ends[order].tolist(), strict=True):
        if ranges and start - ranges[-1][1] <= max_gap:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], end))
        else:
            ranges.append((start, end))
    return ranges
