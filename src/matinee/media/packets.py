"""Packet tables: where each compressed frame of a video lies, and which frames need which others.

A table holds, per packet in decode order, its byte offset and size in the file, the display index
of the frame it carries, and two flags: `key` (decoding can start here) and `disposable` (no other
frame refers to it). That is all a reader needs to fetch and decode any set of frames without
opening the container again.

# Note [Temporal layers]
An H.264 slice says in its first byte whether later frames refer to it (`nal_ref_idc`, ITU-T Rec.
H.264 §7.4.1); other codecs say it elsewhere (`media/units`). Packets to which none refers can be
left out without changing any other frame. matinee's encoder places such frames between references
at a fixed spacing equal to the training stride, so a clip sampled at that stride and phase skips
every frame it does not use.
"""

from __future__ import annotations

import io
import re
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, BinaryIO

import av
import numpy as np

from matinee.errors import MediaError
from matinee.media.source import Source, open_bytes, open_video, reason_of, video_stream
from matinee.media.units import MPEG2, MPEG4, Picture, headers_of, settle
from matinee.media.units.sets import ParameterSets

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
        frame = self.frame
        # Runs in decoding threads, under the GIL: methods of arrays cost half of NumPy's functions.
        shown = (frame >= 0).nonzero()[0]
        num_frames = len(shown)
        packet_of = np.full(num_frames, -1, dtype=np.int64)
        keys = self.key.nonzero()[0]
        if num_frames:
            if int(frame.max()) >= num_frames:
                raise MediaError("packet table is damaged: frame numbers are not 0 … n-1")
            packet_of[frame[shown]] = shown
            if int(packet_of.min()) < 0:
                raise MediaError("packet table is damaged: a frame number occurs twice")
            if not len(keys) or keys[0] != 0:
                raise MediaError(
                    "the first packet is not a keyframe, so the start cannot be decoded"
                )
        if len(self.size) and int(self.size.min()) <= 0:
            raise MediaError("packet table is damaged: a packet of no bytes")
        key_frames = frame[keys]
        if len(keys) and int(key_frames.min()) < 0:
            # Hidden keys. One before all shown frames is where the first of them start from.
            leads = keys[keys < shown[0]][-1:] if num_frames else keys[:0]
            keys = keys[key_frames >= 0]
            if len(leads) and (not len(keys) or frame[keys[0]] > 0):
                keys = np.concatenate([leads, keys])
            key_frames = np.maximum(frame[keys], 0)
        # What is decoded before a key is shown before it, else a run that starts there misses it.
        if (np.maximum.accumulate(frame)[keys] > key_frames).any():
            raise MediaError("keyframes are shown in another order than they are stored")
        object.__setattr__(self, "num_frames", num_frames)
        object.__setattr__(self, "packet_of", packet_of)
        object.__setattr__(self, "key_packets", keys)
        object.__setattr__(self, "key_frames", key_frames)

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
        frame = records["frame"].astype(np.int64)
        if count and (int(offset.min()) < 0 or (offset > data_size - size).any()):
            raise MediaError("packet table is damaged: a packet lies outside the file")
        if count and int(frame.min()) < -1:
            raise MediaError("packet table is damaged: a frame number below -1")
        flags = records["flags"]
        return cls(
            offset=offset,
            size=size,
            frame=frame,
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


def scan_packets(source: Source | bytes) -> PacketScan:
    """Build the packet table of a file (or of a file's bytes) without decoding it.

    Every packet's bytes are compared with the file at the offset the table will hold, so a table
    can never point at the wrong place. Keys and disposable packets are those that the codec's own
    headers tell (`media/units`), whatever the container says.

    Raises:
        MediaError: no video, no order of frames, a codec whose headers are not known, or packets
            that are not plain byte ranges of the file.
    """
    file: BinaryIO = io.BytesIO(source) if isinstance(source, bytes) else open_bytes(source)
    with file, _open(source) as container:
        stream = video_stream(container)
        codec, form = stream.codec_context, container.format.name.split(",")[0]
        extradata = codec.extradata or b""
        headers = headers_of(codec.name, extradata, intra_only=codec.codec.intra_only)
        if headers is None:
            raise MediaError(
                f"is {codec.name}, whose references between frames cannot be told from its "
                "packets, so it cannot be indexed: pack it"
            )
        sets = ParameterSets(codec.name, extradata)
        rows: list[tuple[int, int, int]] = []
        pictures: list[Picture] = []
        times: list[int | None] = []
        try:
            for packet in container.demux(stream):
                if not packet.size:
                    continue
                if packet.is_corrupt:
                    raise MediaError(f"is damaged: packet {len(rows)} is corrupt or cut short")
                if packet.has_sidedata("encryption_info"):
                    raise MediaError("is encrypted")
                if rows and packet.has_sidedata("new_extradata"):
                    raise MediaError("changes its decoder setup midway: pack it")
                payload = bytes(packet)
                sets.one_sequence(payload)
                picture = headers.read(payload)
                if picture.shown > 1:
                    raise MediaError(
                        f"packet {len(rows)} holds {picture.shown} frames (packed B-frames or "
                        "layers), so it cannot be indexed: pack it"
                    )
                offset = _find(file, packet.pos, payload, form)
                rows.append((offset, len(payload), zlib.crc32(payload)))
                pictures.append(replace(picture, shown=0) if packet.is_discard else picture)
                times.append(packet.pts)
        except av.FFmpegError as error:
            raise MediaError(f"damaged: {reason_of(error)}") from None
        reordered = bool(codec.has_b_frames) or any(picture.backward for picture in pictures)
        by_type = isinstance(headers, MPEG4 | MPEG2)
    if not any(picture.shown for picture in pictures):
        raise MediaError("holds a video stream without frames")
    if form == "avi" and reordered:
        if not by_type:
            raise MediaError(
                "is an AVI with reordered frames, whose times AVI does not keep, so it cannot be "
                "indexed: pack it"
            )
        frame = _order_by_type(pictures)
    else:
        frame = _order_by_time(pictures, times)
    offsets, sizes, checks = (np.array(column) for column in zip(*rows, strict=True))
    table = PacketTable(
        offset=offsets.astype(np.int64),
        size=sizes.astype(np.int64),
        frame=frame,
        crc=checks.astype(np.uint32),
        key=np.array([picture.key for picture in pictures]),
        disposable=np.array(settle(pictures)),
    )
    return PacketScan(table, codec.name, extradata)


def _open(source: Source | bytes) -> av.container.InputContainer:
    return open_video(io.BytesIO(source) if isinstance(source, bytes) else source)


def _order_by_time(pictures: list[Picture], times: list[int | None]) -> NDArray[np.int64]:
    """Display index of each packet from presentation times, -1 for those that are not shown."""
    shown = np.array([p for p, picture in enumerate(pictures) if picture.shown], dtype=np.int64)
    held = [times[p] for p in shown.tolist()]
    if None in held:
        raise MediaError("packets carry no presentation times, so frames have no order: pack it")
    pts = np.array(held, dtype=np.int64)
    order = np.argsort(pts, kind="stable")
    if np.any(np.diff(pts[order]) == 0):
        raise MediaError("two frames carry the same presentation time")
    frame = np.full(len(pictures), -1, dtype=np.int64)
    frame[shown[order]] = np.arange(len(shown))
    return frame


def _order_by_type(pictures: list[Picture]) -> NDArray[np.int64]:
    """The same from picture types: a B-picture is shown at once, another when the next one comes.

    Source: ISO/IEC 13818-2 §6.1.1.11; MPEG-4 part 2 does the same.
    """
    frame = np.full(len(pictures), -1, dtype=np.int64)
    count, waiting = 0, -1  # `waiting`: the reference that has not been shown
    for packet, picture in enumerate(pictures):
        if not picture.shown:
            continue
        now = packet if picture.backward else waiting
        if not picture.backward:
            waiting = packet
        if now >= 0:
            frame[now] = count
            count += 1
    if waiting >= 0:
        frame[waiting] = count
    return frame


def _find(file: BinaryIO, position: int | None, payload: bytes, container: str) -> int:
    """Byte offset of a packet: at its stated position, or just behind a small block header."""
    if position is not None and position >= 0:
        file.seek(position)
        window = file.read(len(payload) + 32)
        found = window.find(payload)
        if found >= 0:
            return position + found
    why = _NO_RANGES.get(container, "its packets are not plain byte ranges")
    raise MediaError(f"cannot be indexed: {why}; pack it instead")


_NO_RANGES = {
    "mpegts": "MPEG-TS cuts each frame into pieces of at most 184 bytes with headers in between",
    "mpeg": "MPEG program streams cut frames into pieces with headers in between",
    "asf": "ASF cuts frames into pieces with headers in between",
    "ogg": "Ogg cuts frames into pages with headers in between",
    "matroska": "the Matroska file compresses its blocks or strips their first bytes",
}
