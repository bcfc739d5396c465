"""What an indexing worker does with one video. Runs in its own process; imports no torch."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import BinaryIO

import av
import numpy as np

from matinee.errors import MediaError
from matinee.media.convert import Box, Converter, frame_bytes
from matinee.media.decode import ClipDecoder
from matinee.media.packets import PacketTable, VideoFormat, scan_packets
from matinee.media.probe import Probe, probe
from matinee.media.source import (
    Source,
    check_readable,
    file_span,
    open_bytes,
    open_video,
    reason_of,
    stamp_of,
    video_stream,
)
from matinee.pack.decoders import DECODERS

_COMPARED = 8  # frames


@dataclass(frozen=True)
class Indexed:
    """One video's table as bytes, what decoding it needs, and its stamp before it was read."""

    table: bytes
    frames: int
    fps: Fraction
    format: VideoFormat
    stamp: list[int]


class IndexJob:
    """Indexes one video; the answer is an `Indexed`, or in words why it is refused."""

    def __call__(self, job: tuple[str, Source]) -> Indexed | str:
        video, source = job
        try:
            video.encode()
            return _look(source)
        except UnicodeEncodeError:
            return "has a name that is not UTF-8"
        except OSError as error:
            reason = "no such file" if error.errno == errno.ENOENT else error.strerror
            return f"cannot be read: {reason}"
        except MediaError as error:
            return str(error)


def _look(source: Source) -> Indexed:
    check_readable(source)
    file_span(source)  # a folder of frames is refused before it is read
    stamp = stamp_of(source)
    found = probe(source)
    if needs := needs_normalising(found):
        raise MediaError(f"must be {needs} before training, which indexing cannot do: pack it")
    scan = scan_packets(source)
    if scan.codec not in DECODERS:
        raise MediaError(f"is {scan.codec}, which an index cannot hold: pack it")
    fmt = VideoFormat(
        scan.codec, found.width, found.height, found.pix_fmt, scan.extradata, found.matrix,
        found.full_range,
    )  # fmt: skip
    if not len(scan.table.key_frames) or scan.table.key_frames[0] != 0:
        raise MediaError("starts with frames that need an earlier one, so it cannot be indexed")
    _compare_beginning(source, scan.table, fmt)
    return Indexed(scan.table.to_bytes(), scan.table.num_frames, found.fps, fmt, stamp)


def _compare_beginning(source: Source, table: PacketTable, fmt: VideoFormat) -> None:
    """Decode the first frames as clips will be and as a player does: they are the same pixels.

    They are not where the container tells the decoder what the packets do not, such as an AVI's
    codec tag, which chooses among FFmpeg's inverse transforms.
    """
    count = min(_COMPARED, table.num_frames)
    height, width = fmt.height & ~1, fmt.width & ~1
    clip, player = np.empty((2, count, frame_bytes((height, width))), np.uint8)
    with open_bytes(source) as file:
        ClipDecoder().decode(
            fmt, table, lambda start, end: _read(file, start, end), range(count), clip,
            size=(height, width),
        )  # fmt: skip
    converter = Converter(fmt, Box(0, 0, fmt.width, fmt.height), (height, width), "i420")
    shown = 0
    with open_video(source) as container:
        try:
            for frame in islice(container.decode(video_stream(container)), count):
                converter(frame, player[shown])
                shown += 1
        except (av.FFmpegError, EOFError, PermissionError, ValueError) as error:
            raise MediaError(f"does not decode: {reason_of(error)}") from None
    if shown < count or not np.array_equal(clip, player):
        raise MediaError(
            "does not decode to the same frames without its container, so it cannot be indexed: "
            "pack it"
        )


def _read(file: BinaryIO, start: int, end: int) -> bytes:
    file.seek(start)
    return file.read(end - start)


def needs_normalising(source: Probe) -> str:
    """What would have to be done to a file before its stored frames are those to be shown.

    Empty if nothing, else words such as "turned upright and deinterlaced".
    """
    needs = [
        what
        for what, holds in (
            ("turned upright", bool(source.orientation.filters)),
            ("given square pixels", source.pixel_aspect != 1),
            ("deinterlaced", source.interlaced),
            ("evenly spaced in time", not source.constant),
            ("converted from its colour matrix", source.colorspace not in (0, 1, 2, 5, 6)),
        )
        if holds
    ]
    return " and ".join(needs)
