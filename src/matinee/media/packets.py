"""Packet tables: where each compressed frame of a video lies, and which frames need which others.

A table holds, per packet in decode order, its byte offset and size in the file, the display index
of the frame it carries, and two flags: `key` (decoding can start here) and `disposable` (no other
frame refers to it). That is all a reader needs to fetch and decode any set of frames without
opening the container again.

# Note [Temporal layers]
An H.264 slice says in its first byte whether later frames refer to it (`nal_ref_idc`, ITU-T Rec.
H.264 §7.4.1). Packets with `nal_ref_idc == 0` can be left out without changing any other frame.
matinee's encoder places such frames between references at a fixed spacing equal to the training
stride, so a clip sampled at that stride and phase skips every frame it does not use.
"""

from __future__ import annotations

import io
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import av
import numpy as np

from matinee.errors import MediaError
from matinee.media.source import open_video, reason_of, video_stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY, DISPOSABLE = 1, 2

RECORD = np.dtype(
    [("offset", "<i8"), ("size", "<i4"), ("frame", "<i4"), ("crc", "<u4"), ("flags", "<u1")]
)  # 21 bytes a packet; frame is -1 for a packet that is decoded but never shown


@dataclass(frozen=True)
class VideoFormat:
    """What a decoder must know before the first packet, and a converter before the first frame.

    `width`, `height` in pixels as coded; `matrix` is "bt601" or "bt709" (YCbCr→RGB coefficients);
    `full_range` tells 0–255 luma from 16–235.
    """

    codec: str
    width: int
    height: int
    pix_fmt: str
    extradata: bytes
    matrix: str
    full_range: bool


@dataclass(frozen=True)
class PacketTable:
    """Packets of one video in decode order; arrays are [P]. `num_frames` counts shown frames."""

    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    frame: NDArray[np.int64]
    crc: NDArray[np.uint32]  # of the packet's bytes (CRC-32): not all damage fails to decode
    key: NDArray[np.bool_]
    disposable: NDArray[np.bool_]
    num_frames: int = field(init=False)
    packet_of: NDArray[np.int64] = field(init=False, repr=False)  # [num_frames]: frame → packet
    key_packets: NDArray[np.int64] = field(init=False, repr=False)  # [keys]: packet indices
    key_frames: NDArray[np.int64] = field(init=False, repr=False)  # [keys]: their display indices

    def __post_init__(self) -> None:
        shown = np.flatnonzero(self.frame >= 0)
        num_frames = len(shown)
        packet_of = np.full(num_frames, -1, dtype=np.int64)
        if num_frames and int(self.frame.max()) >= num_frames:
            raise MediaError("packet table is damaged: frame numbers are not 0 … n-1")
        packet_of[self.frame[shown]] = shown
        if num_frames and int(packet_of.min()) < 0:
            raise MediaError("packet table is damaged: a frame number occurs twice")
        if num_frames and not self.key[0]:
            raise MediaError("the first packet is not a keyframe, so the start cannot be decoded")
        if len(self.size) and int(self.size.min()) <= 0:
            raise MediaError("packet table is damaged: a packet of no bytes")
        keys = np.flatnonzero(self.key & (self.frame >= 0))
        object.__setattr__(self, "num_frames", num_frames)
        object.__setattr__(self, "packet_of", packet_of)
        object.__setattr__(self, "key_packets", keys)
        object.__setattr__(self, "key_frames", self.frame[keys])
        if np.any(np.diff(self.key_frames) <= 0):
            raise MediaError("keyframes are shown in another order than they are stored")

    def to_bytes(self) -> bytes:
        """The table as a NumPy `.npy` file (format 1.0) of packed 21-byte records."""
        records = np.empty(len(self.offset), RECORD)
        records["offset"], records["size"], records["frame"] = self.offset, self.size, self.frame
        records["crc"] = self.crc
        records["flags"] = self.key * KEY + self.disposable * DISPOSABLE
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, records, version=(1, 0), allow_pickle=False)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, raw: bytes, *, data_size: int) -> PacketTable:
        """Read a table written by `to_bytes`, trusting nothing in it.

        `data_size` is the number of bytes of the video file the table speaks of.

        Raises:
            MediaError: not such a table, or a packet outside the file.
        """
        start, count = _read_header(raw)
        if len(raw) - start != count * RECORD.itemsize:
            raise MediaError("packet table is damaged: its length does not match its header")
        records = np.frombuffer(raw, RECORD, offset=start)
        offset = records["offset"].astype(np.int64)
        size = records["size"].astype(np.int64)
        if len(records) and (
            int(offset.min()) < 0 or int(offset.max()) > data_size - int(size[offset.argmax()])
        ):
            raise MediaError("packet table is damaged: a packet lies outside the file")
        if np.any(offset + size > data_size) or np.any(records["frame"] < -1):
            raise MediaError("packet table is damaged: a packet lies outside the file")
        flags = records["flags"]
        return cls(
            offset=offset,
            size=size,
            frame=records["frame"].astype(np.int64),
            crc=records["crc"].copy(),
            key=(flags & KEY) != 0,
            disposable=(flags & DISPOSABLE) != 0,
        )


def _header(count: int) -> bytes:
    """The text of the header of a table's `.npy` file."""
    buffer = io.BytesIO()
    fields = {"descr": RECORD.descr, "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()[_PREFIX:].strip()


_PREFIX = 10  # bytes before the text: magic string, version, length of the text
_COUNT = re.compile(re.escape(_header(0)).replace(rb"\(0,\)", rb"\((\d{1,15}),\)") + rb" *\n")


def _read_header(raw: bytes) -> tuple[int, int]:
    """Where the records start, and how many there are.

    NumPy would parse the text as Python code, which CPython 3.11 cannot do in several threads at
    once ("AST constructor recursion depth mismatch"); only one text is ours.
    """
    length = int.from_bytes(raw[8:_PREFIX], "little")
    if raw[:8] != np.lib.format.magic(1, 0) or len(raw) < _PREFIX + length:
        raise MediaError("packet table is damaged: it is no array file of format 1.0")
    found = _COUNT.fullmatch(raw[_PREFIX : _PREFIX + length])
    if found is None:
        raise MediaError("packet table is damaged: its header is not that of a packet table")
    return _PREFIX + length, int(found[1])


@dataclass(frozen=True)
class PacketScan:
    """What one pass over a file's packets tells, and what a decoder needs to begin."""

    table: PacketTable
    codec: str
    extradata: bytes


def scan_packets(source: Path | bytes) -> PacketScan:
    """Build the packet table of a file (or of a file's bytes) without decoding it.

    Every packet's bytes are compared with the file at the offset the table will hold, so a table
    can never point at the wrong place.

    Raises:
        MediaError: no video, no timestamps, or packets that are not plain byte ranges of the file.
    """
    file: BinaryIO = io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
    with file, _open(source) as container:
        stream = video_stream(container)
        codec_name = stream.codec_context.name
        extradata = stream.codec_context.extradata or b""
        if container.format.name == "avi" and stream.codec_context.has_b_frames:
            raise MediaError(
                "is an AVI with reordered frames, whose times AVI does not keep, so it cannot be "
                "indexed: pack it"
            )
        units = _H264Units(extradata) if codec_name == "h264" else None
        rows: list[tuple[int, int, int, int, bool, bool, bool]] = []
        try:
            for packet in container.demux(stream):
                if not packet.size:
                    continue
                if packet.pts is None:
                    raise MediaError("packets carry no presentation times, so frames have no order")
                payload = bytes(packet)
                offset = _find(file, packet.pos, payload, container.format.name)
                key, disposable = packet.is_keyframe, False
                if units is not None:
                    key, disposable = units.key_and_disposable(payload)
                rows.append(
                    (offset, len(payload), packet.pts, zlib.crc32(payload), key, disposable,
                     packet.is_discard)
                )  # fmt: skip
        except av.FFmpegError as error:
            raise MediaError(f"damaged: {reason_of(error)}") from None
        if not rows:
            raise MediaError("holds a video stream without packets")
        columns = [np.array(column) for column in zip(*rows, strict=True)]
        offsets, sizes, pts, checks, keys, disposables, hidden = columns
        shown = np.flatnonzero(~hidden.astype(bool))
        order = shown[np.argsort(pts[shown], kind="stable")]
        if np.any(np.diff(pts[order]) == 0):
            raise MediaError("two frames carry the same presentation time")
        frame = np.full(len(rows), -1, dtype=np.int64)
        frame[order] = np.arange(len(order))
        return PacketScan(
            table=PacketTable(
                offset=offsets.astype(np.int64),
                size=sizes.astype(np.int64),
                frame=frame,
                crc=checks.astype(np.uint32),
                key=keys.astype(bool),
                disposable=disposables.astype(bool),
            ),
            codec=codec_name,
            extradata=extradata,
        )


def _open(source: Path | bytes) -> av.container.InputContainer:
    return open_video(io.BytesIO(source) if isinstance(source, bytes) else source)


def _find(file: BinaryIO, position: int | None, payload: bytes, container: str) -> int:
    """Byte offset of a packet: at its stated position, or just behind a small block header."""
    if position is not None and position >= 0:
        file.seek(position)
        window = file.read(len(payload) + 32)
        found = window.find(payload)
        if found >= 0:
            return position + found
    raise MediaError(
        f"packets of this {container} file are not plain byte ranges, so it cannot be indexed; "
        "pack it instead"
    )


class _H264Units:
    """Reads the headers of an H.264 packet's NAL units (ITU-T Rec. H.264 §7.3.1)."""

    def __init__(self, extradata: bytes) -> None:
        # avcC (ISO/IEC 14496-15 §5.3.3): byte 0 is 1, the low bits of byte 4 the length size.
        is_avcc = len(extradata) > 4 and extradata[0] == 1
        self.length_size = (extradata[4] & 3) + 1 if is_avcc else 0

    def key_and_disposable(self, payload: bytes) -> tuple[bool, bool]:
        """Whether decoding can start here, and whether no other picture refers to this one.

        Only an IDR picture (type 5) is a key: containers also flag recovery points, after which
        the pictures shown first may refer to what came before. Disposable: nal_ref_idc is 0 in
        all slices.
        """
        slices = [header for header in self._headers(payload) if 1 <= header & 31 <= 5]
        key = any(header & 31 == 5 for header in slices)
        return key, bool(slices) and all(header >> 5 & 3 == 0 for header in slices)

    def _headers(self, payload: bytes) -> list[int]:
        headers: list[int] = []
        if self.length_size:
            at = 0
            while at + self.length_size < len(payload):
                length = int.from_bytes(payload[at : at + self.length_size], "big")
                headers.append(payload[at + self.length_size])
                at += self.length_size + length
        else:  # Annex B: units behind 00 00 01
            at = payload.find(b"\0\0\1")
            while 0 <= at < len(payload) - 3:
                headers.append(payload[at + 3])
                at = payload.find(b"\0\0\1", at + 3)
        return headers
