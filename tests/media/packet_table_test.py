"""Packet tables: what is written is read back, and nothing in a table is trusted."""

from __future__ import annotations

import io
import struct
import warnings

import av
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from matinee.errors import MediaError
from matinee.media.packets import RECORD, PacketTable, scan_packets

FILE_BYTES = 10_000


def small_table() -> PacketTable:
    """Decode order I P B B, shown as I B B P."""
    return PacketTable(
        offset=np.array([100, 500, 700, 800]),
        size=np.array([400, 200, 100, 50]),
        frame=np.array([0, 3, 1, 2]),
        crc=np.array([1, 2, 3, 4], np.uint32),
        key=np.array([True, False, False, False]),
        disposable=np.array([False, False, True, True]),
    )


def records_of(table: PacketTable) -> np.ndarray:
    return np.load(io.BytesIO(table.to_bytes())).copy()


def npy(records: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, records, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def raw_header(text: str, body: bytes = b"") -> bytes:
    """A .npy 1.0 file with any header text."""
    line = text.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line + body


def same(a: PacketTable, b: PacketTable) -> bool:
    names = ("offset", "size", "frame", "key", "disposable", "packet_of", "key_frames")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def test_a_table_is_read_back_as_written():
    """Round trip through bytes, and the order of frames derived from it."""
    table = small_table()
    again = PacketTable.from_bytes(table.to_bytes(), data_size=FILE_BYTES)
    assert same(again, table)
    assert again.num_frames == 4
    assert again.packet_of.tolist() == [0, 2, 3, 1]


def test_a_table_is_an_ordinary_npy_file():
    """NumPy alone reads it: a record a packet, 21 bytes each."""
    records = np.load(io.BytesIO(small_table().to_bytes()), allow_pickle=False)
    assert records.dtype == RECORD
    assert records["offset"].tolist() == [100, 500, 700, 800]
    assert records["flags"].tolist() == [1, 0, 2, 2]


def test_a_scanned_file_survives_the_round_trip(tmp_path, film):
    """x264 with B-frames: the table on disk says what the demuxer said."""
    path = film(tmp_path / "a.mp4", frames=30, options={"preset": "medium", "g": "12"})
    table = scan_packets(path).table
    assert same(PacketTable.from_bytes(table.to_bytes(), data_size=path.stat().st_size), table)


def test_the_table_points_at_the_bytes_of_each_packet(tmp_path, film):
    """The bytes at every offset are those a demuxer hands out."""
    path = film(tmp_path / "a.mp4", frames=30)
    table, data = scan_packets(path).table, path.read_bytes()
    with av.open(str(path)) as file:
        packets = [bytes(packet) for packet in file.demux(video=0) if packet.size]
    assert packets == [data[a : a + n] for a, n in zip(table.offset, table.size, strict=True)]


def table_of(frame: list[int], key: list[int]) -> PacketTable:
    """Packets of 10 bytes that carry these frames, with keys at these packets."""
    count = len(frame)
    return PacketTable(
        offset=np.arange(count) * 10,
        size=np.full(count, 10),
        frame=np.array(frame),
        crc=np.zeros(count, np.uint32),
        key=np.isin(np.arange(count), key),
        disposable=np.zeros(count, bool),
    )


@pytest.mark.parametrize(
    ("frame", "key", "packets", "frames"),
    [
        ([0, 2, 1, 3, 5, 4], [0, 3], [0, 3], [0, 3]),
        ([-1, -1, 0, 1], [0], [0], [0]),  # an edit list hides the start
        ([-1, -1, -1, 0, 1], [0, 2], [2], [0]),  # the later of two hidden keys
        ([-1, -1, 0, 1], [0, 2], [2], [0]),  # a shown key is nearer
        ([0, 1, -1, 2, 3], [0, 2, 3], [0, 3], [0, 2]),  # hidden amid shown ones: not used
        ([0, -1], [0, 1], [0], [0]),
    ],
)
def test_keys_are_those_that_decoding_can_start_from(frame, key, packets, frames):
    """Hidden keys serve only the first shown frames."""
    table = table_of(frame, key)
    assert (table.key_packets.tolist(), table.key_frames.tolist()) == (packets, frames)
    raw = PacketTable.from_bytes(table.to_bytes(), data_size=FILE_BYTES)
    assert same(raw, table) and raw.key_packets.tolist() == packets


@pytest.mark.parametrize(
    ("frame", "key"),
    [
        ([0, 2, 1], [0, 1, 2]),  # keys shown in another order than stored
        ([0, 3, 1, 2], [0, 2]),  # a run that starts at packet 2 would miss frame 3
        ([-1, 2, 0, 1], [0, 2]),
        ([0, 1], [1]),
        ([-1, 0], []),
    ],
)
def test_a_key_behind_frames_that_are_shown_later_is_refused(frame, key):
    """MediaError: the plan from such a key would leave frames out."""
    with pytest.raises(MediaError):
        table_of(frame, key)


def test_every_truncation_is_refused():
    """A table cut at any byte is a MediaError."""
    raw = small_table().to_bytes()
    for length in range(len(raw)):
        with pytest.raises(MediaError):
            PacketTable.from_bytes(raw[:length], data_size=FILE_BYTES)


def test_bytes_behind_the_table_are_refused():
    """The header says how long it is."""
    with pytest.raises(MediaError, match="length"):
        PacketTable.from_bytes(small_table().to_bytes() + b"\0", data_size=FILE_BYTES)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(4, np.int64),
        np.zeros((2, 2), RECORD),
        np.zeros(4, RECORD.newbyteorder(">")),
        np.zeros(4, np.dtype([("offset", "<i8"), ("size", "<i4"), ("frame", "<i4")])),
        np.asfortranarray(np.zeros((3, 3), RECORD)),
    ],
    ids=["integers", "two axes", "big-endian", "a field less", "Fortran order"],
)
def test_another_layout_is_refused(array):
    """Only one dtype and one axis are a packet table."""
    with pytest.raises(MediaError):
        PacketTable.from_bytes(npy(array), data_size=FILE_BYTES)


def test_pickled_objects_are_refused_unread():
    """An object array never reaches the unpickler."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(MediaError):
        PacketTable.from_bytes(buffer.getvalue(), data_size=FILE_BYTES)


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(9223372036854775807,)", "(-1,)", "(0,)"])
def test_a_shape_that_does_not_fit_the_bytes_is_refused(shape):
    """Nothing is allocated for a shape the file cannot hold."""
    raw = small_table().to_bytes().replace(b"(4,)", shape.encode())
    length = struct.unpack("<H", raw[8:10])[0] + len(shape) - 4
    with pytest.raises(MediaError):
        PacketTable.from_bytes(raw[:8] + struct.pack("<H", length) + raw[10:], data_size=FILE_BYTES)


@pytest.mark.parametrize(
    ("field", "packet", "value"),
    [
        ("offset", 0, -1),
        ("offset", 3, FILE_BYTES - 49),
        ("offset", 2, FILE_BYTES),
        ("offset", 1, 2**63 - 1),
        ("offset", 1, -(2**63)),
        ("size", 0, 0),
        ("size", 0, -5),
        ("size", 2, -(2**31)),
        ("size", 2, 2**31 - 1),
        ("frame", 2, 0),  # twice
        ("frame", 1, 4),  # beyond the last
        ("frame", 1, -2),
        ("frame", 1, 2**31 - 1),
        ("frame", 1, -1),  # see below: leaves a gap
        ("flags", 0, 0),  # starts without a key
        ("flags", 2, 1),  # see below: keys out of order
    ],
)
def test_one_hostile_value_is_refused(field, packet, value):
    """Offsets outside, sizes of nothing, frame numbers twice or too high, no key at the start."""
    records = records_of(small_table())
    if (field, value) == ("frame", -1):
        records["frame"][2] = -1  # leaves frames 0, 3, 2
    elif (field, value) == ("flags", 1):
        records["flags"][1] = 1  # keys shown as 0, 3, 1
        records["flags"][2] = 1
    else:
        records[field][packet] = value
    with pytest.raises(MediaError):
        PacketTable.from_bytes(npy(records), data_size=FILE_BYTES)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<i8', 'fortran_order': False, 'shape': (4,",  # brackets left open
        "{[]: 1}",
        "{'descr': 1, 'fortran_order': False, 'shape': (4,)}",
        "{1: 2, 'a': 3}",
        "(" * 3000 + ")" * 3000,
        "",
        "'",
        "\\",
        "{'descr': [('a', '<i8', (1 << 40,))], 'fortran_order': False, 'shape': (4,)}",
        "{'descr': ['a'], 'fortran_order': False, 'shape': (4,)}",
        "{'descr': ('<i8', 2, 3, 4), 'fortran_order': False, 'shape': (4,)}",
        "{'descr': '|V17', 'fortran_order': 0, 'shape': 4}",
        "  {'descr': '<i8'\n }",
        "-" * 5000 + "1",
    ],
)
def test_a_nonsense_header_is_refused(header):
    """Whatever stands in the header, the answer is MediaError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(MediaError):
            PacketTable.from_bytes(raw_header(header, b"\0" * 68), data_size=FILE_BYTES)


def test_a_table_without_packets_is_read_or_refused():
    """No rows at all: an empty table, or MediaError, nothing else."""
    try:
        table = PacketTable.from_bytes(npy(np.zeros(0, RECORD)), data_size=FILE_BYTES)
    except MediaError:
        return
    assert table.num_frames == 0


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
@example([(60, ord("("))])
@example([(11, ord("("))])
def test_mutated_tables_are_refused_or_sound(changes):
    """Any bytes changed: MediaError, or a table whose every packet lies in the file."""
    raw = bytearray(small_table().to_bytes())
    for place, value in changes:
        raw[place % len(raw)] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's note on Python 2 headers
        try:
            table = PacketTable.from_bytes(bytes(raw), data_size=FILE_BYTES)
        except MediaError:
            return
    assert len(table.offset) == 4
    assert table.offset.min() >= 0 and table.size.min() > 0
    assert (table.offset + table.size).max() <= FILE_BYTES
    assert sorted(table.frame[table.frame >= 0]) == list(range(table.num_frames))
