"""Cut a long video into segments that are decoded apart and give the frames that one pass gives.

# Note [Segments]
A segment is some consecutive chunks. Its decoding starts at a clean key: a packet from which
everything shown later comes out exact, such that all that is stored before it is shown before it.
Frames between the key and the segment's own are decoded and dropped. A segment also decodes every
packet up to the next segment's key and counts its frames, so together the segments decode each
packet of the file at least once, and damage anywhere is found. The times of the frames must be
those of the packets: if anything comes out otherwise than planned, the segment fails, and the video
is then decoded from its beginning in one go.

The cut depends on the file and on the chunks alone, never on how many work on it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING

import av
import numpy as np

from matinee.errors import MediaError
from matinee.media.normalise import (
    check_frame,
    most_frames,
    prepare_decoder,
    slot_of,
    spaced_frames,
)
from matinee.media.probe import Probe
from matinee.media.source import Source, open_video, reason_of, video_stream
from matinee.media.units import headers_of
from matinee.media.units.sets import ParameterSets

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SMALL_LEAD = 16  # one frame in so many is gladly decoded only to get to the segment,
_MAX_LEAD = 4  # one in so many at most
_LOOK_FOR_KEY = 2000  # packets read after a seek before the file is read from its beginning


@dataclass(frozen=True)
class StoredPackets:
    """Packets in the order they are stored; arrays are [P]. `base` is the unit of `pts`, seconds.

    `key`: decoding can start there. `last_duration` is that of the packet shown last.
    """

    pts: NDArray[np.int64]
    size: NDArray[np.int64]
    shown: NDArray[np.bool_]
    key: NDArray[np.bool_]
    base: Fraction
    last_duration: int


@dataclass(frozen=True)
class Segment:
    """Output frames `start` … `start + frames - 1` of a video, and how to get them.

    packet, pts, size: the key that decoding starts from: its number, time and bytes.
    first: number of the frame it shows; from there on `decode` frames are decoded, whose times have
    the CRC-32 `times` (as little-endian int64).
    until: all packets before this one are decoded; None: all there are.
    origin: slot of the video's first frame. See Note [Even spacing] in normalise.py.
    """

    start: int
    frames: int
    packet: int
    pts: int
    size: int
    first: int
    decode: int
    times: int
    until: int | None
    origin: int


def read_packets(path: Source, source: Probe) -> StoredPackets:
    """The packets of a file whose segments can be decoded apart.

    Raises:
        MediaError: they cannot, or it is not known that they can; the text says why.
    """
    if source.interlaced:
        raise MediaError("is interlaced, and a progressive frame is made from its neighbours too")
    if not source.one_frame_a_packet:
        raise MediaError("is in a codec whose packets are not known to hold one frame each")
    rows: list[tuple[int, int, bool, bool]] = []
    last, duration = -(1 << 63), 0
    with open_video(path) as container:
        stream = video_stream(container)
        codec = stream.codec_context
        extradata = codec.extradata or b""
        headers = headers_of(codec.name, extradata, intra_only=codec.codec.intra_only)
        if headers is None:
            raise MediaError(f"is in {codec.name}, whose keyframes are not understood")
        sets = ParameterSets(codec.name, extradata)
        base = stream.time_base or Fraction(1, 1000)
        try:
            for packet in container.demux(stream):
                if not packet.size:
                    continue
                if packet.pts is None:
                    raise MediaError("has packets without a time")
                if packet.has_sidedata("new_extradata") or packet.has_sidedata("param_change"):
                    raise MediaError("changes its decoder setup on the way")
                key = packet.is_keyframe
                entry = sets.check(packet)
                key = key and entry and headers.read(bytes(packet)).key
                rows.append((packet.pts, packet.size, not packet.is_discard, key))
                if packet.pts > last:
                    last, duration = packet.pts, packet.duration or 0
        except av.FFmpegError as error:
            raise MediaError(f"is damaged: {reason_of(error)}") from None
    if not rows:
        raise MediaError("holds a video stream without packets")
    pts, size, shown, keys = (np.array(column) for column in zip(*rows, strict=True))
    if len(np.unique(pts)) != len(pts):
        raise MediaError("has two packets of the same time")
    return StoredPackets(pts.astype(np.int64), size.astype(np.int64), shown, keys, base, duration)


def cut_segments(
    packets: StoredPackets, source: Probe, *, frames_per_chunk: int, chunks: int
) -> list[Segment]:
    """Segments of `chunks` chunks, or of a few more where they then begin closer behind a key.

    Args:
        frames_per_chunk: output frames of each chunk but the last.

    Raises:
        MediaError: the video cannot be cut, such as for want of keys; the text says why.
    """
    times = np.sort(packets.pts[packets.shown])
    origin = slots_end = 0
    if source.constant:
        slots, slots_end = np.arange(len(times)), len(times)
    else:
        near = [slot_of(int(time), packets.base, source.fps) for time in times]
        origin = near[0]
        slots = np.array(near) - origin
        after = slot_of(int(times[-1]) + packets.last_duration, packets.base, source.fps)
        slots_end = max(near[-1] + 1, after) - origin
    if slots_end > most_frames(source):
        raise MediaError(f"has frame times that give {slots_end} frames for {len(times)}")
    keys = np.union1d([0], _clean_keys(packets))  # the beginning is where all decoding begins
    key_frames = np.searchsorted(times, packets.pts[keys])
    key_frames[0] = 0
    starts = np.arange(0, slots_end, frames_per_chunk)
    # The frame that is shown in the first slot of each chunk, and the key to start it from.
    shown_first = np.searchsorted(slots, starts, side="right") - 1
    group = np.searchsorted(key_frames, shown_first, side="right") - 1
    group[0] = 0  # frames that are never shown are decoded too
    lead = shown_first - key_frames[group]
    bounds = _boundaries(lead.tolist(), shown_first.tolist(), chunks)
    if len(bounds) < 2:
        raise MediaError("has too few keyframes that decoding can start from")
    segments: list[Segment] = []
    for at, following in zip(bounds, [*bounds[1:], None], strict=True):
        packet, first = int(keys[group[at]]), int(key_frames[group[at]])
        start = int(starts[at])
        if following is None:
            stop, last, until = slots_end, len(times), None
        else:
            stop, last = int(starts[following]), int(shown_first[following])
            # The frame before the next segment's first may be its own too, in a pause.
            last = max(last, int(np.searchsorted(slots, stop - 1, side="right")))
            until = int(keys[group[following]])
        stored = times[first:last].astype("<i8").tobytes()
        segments.append(
            Segment(
                start, stop - start, packet, int(packets.pts[packet]), int(packets.size[packet]),
                first, last - first, zlib.crc32(stored), until, origin,
            )
        )  # fmt: skip
    return segments


def segment_frames(
    path: Source, source: Probe, size: tuple[int, int], segment: Segment
) -> Iterator[av.VideoFrame]:
    """The normalised frames of one segment, as `normalised_frames` gives them in their place.

    Raises:
        MediaError: damage, or anything that comes out otherwise than planned.
    """
    return spaced_frames(
        _decoded(path, source, segment), source, size, first=segment.first, origin=segment.origin,
        start=segment.start, stop=segment.start + segment.frames,
    )  # fmt: skip


def _clean_keys(packets: StoredPackets) -> NDArray[np.int64]:
    """Keys before which nothing is stored that is shown later, and behind which nothing earlier."""
    earliest = np.minimum.accumulate(packets.pts[::-1])[::-1]
    latest = np.maximum.accumulate(packets.pts)
    before = np.concatenate([[np.iinfo(np.int64).min], latest[:-1]])
    clean = packets.key & packets.shown & (packets.pts == earliest) & (before < packets.pts)
    return np.flatnonzero(clean)


def _boundaries(lead: list[int], frame: list[int], chunks: int) -> list[int]:
    """The chunks that segments begin with: the first with little to lead in, or the least.

    Args:
        lead: of each chunk, frames between the last key and the chunk's first.
        frame: of each chunk, the number of its first source frame.
    """
    bounds, at = [0], chunks
    while at + chunks <= len(lead):
        window = range(at, min(at + chunks, len(lead) - chunks) + 1)
        best = min(window, key=lambda chunk: lead[chunk])
        room = {chunk: frame[chunk] - frame[bounds[-1]] for chunk in window}
        best = next((c for c in window if lead[c] * _SMALL_LEAD <= room[c]), best)
        if lead[best] * _MAX_LEAD <= room[best]:
            bounds.append(best)
            at = best + chunks
        else:
            at = window[-1] + 1
    return bounds


def _decoded(path: Source, source: Probe, segment: Segment) -> Iterator[av.VideoFrame]:
    """Frames from the segment's key on, each checked, and at the end their number and times."""
    count = times = 0
    try:
        for number, packet in _packets(path, segment):
            if packet.is_corrupt:
                raise MediaError(f"is damaged in segment {segment.start}: a packet is cut short")
            for frame in packet.decode():
                assert isinstance(frame, av.VideoFrame)
                if count < segment.decode or segment.until is None:
                    check_frame(frame, source, segment.first + count)
                    times = zlib.crc32(struct.pack("<q", frame.pts or 0), times)
                    count += 1
                    yield frame
            done = segment.until is not None and number + 1 >= segment.until
            if done and count == segment.decode:
                break
    except (av.FFmpegError, EOFError, PermissionError, ValueError) as error:
        raise MediaError(f"is damaged in segment {segment.start}: {reason_of(error)}") from None
    if (count, times) != (segment.decode, segment.times):
        raise MediaError(
            f"decodes otherwise than planned in segment {segment.start}: "
            f"{count} frames of {segment.decode}"
        )


def _packets(path: Source, segment: Segment) -> Iterator[tuple[int, av.Packet[av.VideoStream]]]:
    """Numbered packets from the segment's key on, and the empty one at the end of the file."""
    for seek in (True, False):
        with open_video(path) as container:
            stream = video_stream(container)
            prepare_decoder(stream)
            packets = container.demux(stream)
            try:
                if seek and segment.packet:
                    container.seek(segment.pts, stream=stream)
                key = _find(islice(packets, _LOOK_FOR_KEY) if seek else packets, segment)
            except av.FFmpegError:
                if not seek:
                    raise
                key = None  # not every format can be sought in
            if key is not None:
                number = segment.packet
                yield number, key
                for packet in packets:
                    number += bool(packet.size)
                    yield number, packet
                return
    raise MediaError("does not hold the packet that was planned")


def _find(
    packets: Iterable[av.Packet[av.VideoStream]], segment: Segment
) -> av.Packet[av.VideoStream] | None:
    wanted = (segment.pts, segment.size)
    return next((packet for packet in packets if (packet.pts, packet.size) == wanted), None)
