"""Packet plans against a simulated decoder that knows every reference."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matinee.media.packets import PacketTable
from matinee.media.plan import byte_ranges, packets_to_feed


@dataclass
class Structure:
    """Packets in decode order: display number, key flag, and the packets each one needs."""

    table: PacketTable
    needs: list[set[int]]


@st.composite
def structures(draw) -> Structure:
    """GOPs of a key and mini-GOPs (an anchor P, then B-frames before it), some of them open.

    B-frames refer to both anchors; some also serve as reference to the B-frames behind them.
    """
    needs: list[set[int]] = []
    keys: list[bool] = []
    shown: list[int] = []  # sort key of display order, then ranked
    at = 0
    last_anchor = -1
    for gop in range(draw(st.integers(1, 5))):
        leading = draw(st.integers(0, 3)) if gop else 0  # pictures of an open GOP
        groups = [leading, *draw(st.lists(st.integers(0, 4), max_size=5))]
        for number, b_frames in enumerate(groups):
            anchor = len(needs)
            before = last_anchor
            needs.append(set() if number == 0 else {before})
            keys.append(number == 0)
            shown.append(at + b_frames)
            references = {anchor} if before < 0 else {before, anchor}
            for b in range(b_frames):
                packet = len(needs)
                needs.append(set(references))
                keys.append(False)
                shown.append(at + b)
                if draw(st.booleans()):
                    references = references | {packet}
            at += b_frames + 1
            last_anchor = anchor
    needed = set().union(*needs)
    count = len(needs)
    frame = np.array(shown)
    droppable = draw(st.booleans())  # codecs other than H.264 mark nothing as disposable
    disposable = np.array([droppable and p not in needed and not keys[p] for p in range(count)])
    size = np.array(draw(st.lists(st.integers(1, 50), min_size=count, max_size=count)))
    offset = np.cumsum(size) - size
    return Structure(
        PacketTable(offset, size, frame, np.zeros(count, np.uint32), np.array(keys), disposable),
        needs,
    )


@settings(max_examples=300, deadline=None)
@given(structures(), st.data())
def test_every_wanted_frame_gets_all_it_depends_on(structure, data):
    """A decoder that starts anew with each run can build all wanted frames; nothing is wasted."""
    table = structure.table
    wanted = data.draw(
        st.lists(st.integers(0, table.num_frames - 1), min_size=1, max_size=8), label="wanted"
    )
    packets = {int(table.packet_of[frame]) for frame in wanted}
    built: set[int] = set()
    for run in packets_to_feed(table, wanted):
        assert table.key[run[0]], "a run starts at a keyframe"
        assert int(run[-1]) in packets, "a run ends at its last wanted frame"
        assert np.all(np.diff(run) > 0), "packets are fed in decode order"
        have: set[int] = set()
        for packet in run:
            if structure.needs[packet] <= have:
                have.add(packet)
        built |= have & packets
        spare = [p for p in run if table.disposable[p] and p not in packets]
        assert not spare, "a disposable packet that nobody asked for"
    assert built == packets


@settings(max_examples=100, deadline=None)
@given(structures(), st.data())
def test_runs_share_no_wanted_frame_and_skip_no_key(structure, data):
    """Each run starts at the last key shown at or before its first wanted frame."""
    table = structure.table
    wanted = data.draw(st.lists(st.integers(0, table.num_frames - 1), min_size=1, max_size=8))
    expected = sorted({max(k for k in table.key_frames.tolist() if k <= f) for f in wanted})
    runs = packets_to_feed(table, wanted)
    assert [int(table.frame[run[0]]) for run in runs] == expected


def test_order_and_repeats_of_the_wanted_frames_do_not_matter():
    """A plan is a set of packets."""
    table = layered(24)
    a = packets_to_feed(table, [17, 4, 4, 9])
    b = packets_to_feed(table, np.array([4, 9, 17]))
    assert a == b


def layered(count: int) -> PacketTable:
    """I then (P B B B)…, one GOP: decode order 0 4 1 2 3 8 5 6 7 …"""
    frame = [0]
    for anchor in range(4, count, 4):
        frame += [anchor, anchor - 3, anchor - 2, anchor - 1]
    n = len(frame)
    return PacketTable(
        offset=np.arange(n) * 10,
        size=np.full(n, 10),
        frame=np.array(frame),
        crc=np.zeros(n, np.uint32),
        key=np.arange(n) == 0,
        disposable=np.array(frame) % 4 != 0,
    )


def test_a_clip_in_phase_with_the_layers_decodes_only_its_own_frames():
    """The point of temporal layers: 5 frames at stride 4 are 5 packets."""
    table = layered(25)
    (run,) = packets_to_feed(table, [0, 4, 8, 12, 16])
    assert table.frame[run].tolist() == [0, 4, 8, 12, 16]


def test_no_frames_need_no_packets():
    """An empty wish is an empty plan."""
    assert packets_to_feed(layered(9), []) == []


@pytest.mark.parametrize("frame", [-1, 9, 10**9])
def test_a_frame_outside_is_an_index_error(frame):
    """The message names the frame."""
    with pytest.raises(IndexError, match=str(frame)):
        packets_to_feed(layered(9), [0, frame])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2000), st.integers(1, 60)), max_size=20, unique_by=lambda x: x[0]
    ),
    st.integers(0, 200),
)
def test_byte_ranges_cover_every_packet_and_join_small_gaps(packets, gap):
    """Ranges are ordered, more than `max_gap` apart, and hold each packet whole."""
    offset = np.array([a for a, _ in packets], dtype=np.int64)
    size = np.array([n for _, n in packets], dtype=np.int64)
    ranges = byte_ranges(offset, size, max_gap=gap)
    assert all(b[0] - a[1] > gap for a, b in pairwise(ranges))
    for a, n in packets:
        assert sum(start <= a and a + n <= end for start, end in ranges) == 1
    edges = {a for a, _ in packets} | {a + n for a, n in packets}
    assert all(start in edges and end in edges for start, end in ranges)


def test_long_stretches_are_read_in_parts():
    """A keyframe an hour: no read is longer than the limit, but a packet is never cut."""
    sizes = [5 << 20] * 9 + [40 << 20] + [1 << 20] * 3
    offsets = np.cumsum([0, *sizes[:-1]]).tolist()
    ranges = byte_ranges(offsets, sizes, max_length=16 << 20)
    assert ranges[0][0] == 0 and all(a[1] == b[0] for a, b in pairwise(ranges))
    assert ranges[-1][1] == sum(sizes)
    lengths = [end - start for start, end in ranges]
    assert max(lengths) == 40 << 20 and sum(length > 16 << 20 for length in lengths) == 1
    for offset, size in zip(offsets, sizes, strict=True):
        assert any(start <= offset and offset + size <= end for start, end in ranges)
