"""Fused decode-crop-scale: planned packets in, pixels written straight into a batch slot.

The crop happens before scaling and colour conversion, so only pixels that are used are converted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

import av
import numpy as np

from matinee.errors import MediaError
from matinee.media.convert import Box as Box
from matinee.media.convert import Converter
from matinee.media.convert import Pixels as Pixels
from matinee.media.convert import frame_bytes as frame_bytes
from matinee.media.packets import PacketTable, VideoFormat
from matinee.media.plan import byte_ranges, packets_to_feed
from matinee.media.source import reason_of
from matinee.media.work import Work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = Sequence[NDArray[np.uint8]] | NDArray[np.uint8]
    Read = Callable[[int, int], bytes | memoryview]

_TOGETHER = 8  # frames decoded before they are scaled: the two evict each other from the cache
_MAX_DECODERS = 16  # kept per thread: bounded, whatever the data set


class ClipDecoder:
    """Decodes clips with single-threaded decoders that it keeps and reuses.

    Not thread-safe: one per worker thread. After any error its decoders are made anew. `work` adds
    up what was done; put another in its place to begin at nothing.
    """

    def __init__(self) -> None:
        self.work = Work()
        self._decoders: OrderedDict[VideoFormat, av.VideoCodecContext] = OrderedDict()

    def decode(
        self,
        fmt: VideoFormat,
        table: PacketTable,
        read: Read,
        frames: Sequence[int] | NDArray[np.int64],
        out: Rows,
        *,
        size: tuple[int, int],
        box: Box | None = None,
        pixels: Pixels = "i420",
    ) -> None:
        """Decode `frames` (display order, repeats allowed), frame i into `out[i]`.

        Args:
            read: `read(start, end)` gives the file's bytes start … end - 1.
            out: uint8 rows of `frame_bytes(size, pixels)` contiguous bytes each.
            size: (height, width) of the output, even for I420.
            box: crop in stored pixels; the whole frame when None.

        Raises:
            MediaError: damaged data, or a frame of another size than `fmt` says. Rows may then
                be partly written.
            IndexError: a frame the table does not have.
            ValueError: a crop outside the picture, rows of another size.
        """
        self.decode_crops(fmt, table, read, frames, [(out, box)], size=size, pixels=pixels)

    def decode_crops(
        self,
        fmt: VideoFormat,
        table: PacketTable,
        read: Read,
        frames: Sequence[int] | NDArray[np.int64],
        crops: Sequence[tuple[Rows, Box | None]],
        *,
        size: tuple[int, int],
        pixels: Pixels = "i420",
    ) -> None:
        """As `decode`, several crops of the same frames: each frame is decoded once.

        Args:
            crops: of each its `out` and its `box`.
        """
        rows: dict[int, list[int]] = {}
        for row, frame in enumerate(frames):
            rows.setdefault(int(frame), []).append(row)
        targets: dict[Box, tuple[Converter, list[Rows]]] = {}  # equal crops are scaled once
        for out, crop in crops:
            box = crop or Box(0, 0, fmt.width, fmt.height)
            if box not in targets:
                targets[box] = Converter(fmt, box, size, pixels), []
            if len(out) != len(frames):
                raise ValueError(f"{len(out)} output rows for {len(frames)} frames")
            for memory in out:
                targets[box][0].check(memory)
            targets[box][1].append(out)

        def write(frame: av.VideoFrame) -> None:
            places = rows[frame.pts or 0]
            for converter, outs in targets.values():
                first, *others = (out[row] for out in outs for row in places)
                converter(frame, first)
                for other in others:
                    other[:] = first

        runs = packets_to_feed(table, list(rows))
        before = self.work.turn("decode")
        try:
            missing = _decode(self._decoder(fmt), table, read, runs, set(rows), write, self.work)
        except (av.FFmpegError, MediaError, EOFError, PermissionError, ValueError) as error:
            self._decoders.pop(fmt, None)
            if isinstance(error, MediaError):
                raise
            raise MediaError(f"damaged video data: {reason_of(error)}") from None
        finally:
            self.work.turn(before)
        if missing:
            self._decoders.pop(fmt, None)
            raise MediaError(f"damaged video data: frame {min(missing)} did not decode")

    def _decoder(self, fmt: VideoFormat) -> av.VideoCodecContext:
        # By all of it: raw video says neither its size nor its pixel format in its packets.
        decoder = self._decoders.get(fmt)
        if decoder is None:
            created = av.CodecContext.create(fmt.codec, "r")
            if not isinstance(created, av.VideoCodecContext):
                raise MediaError(f"{fmt.codec!r} is no video codec")
            decoder = created
            decoder.extradata = fmt.extradata or None
            decoder.width, decoder.height = fmt.width, fmt.height  # some codecs rely on it
            decoder.pix_fmt = fmt.pix_fmt
            decoder.thread_count = 1
            decoder.options = {"err_detect": "explode"}  # damage is an error, never a guessed frame
            self._decoders[fmt] = decoder
            if len(self._decoders) > _MAX_DECODERS:
                self._decoders.popitem(last=False)
        else:
            self._decoders.move_to_end(fmt)
            decoder.flush_buffers()
        return decoder


def _decode(
    decoder: av.VideoCodecContext,
    table: PacketTable,
    read: Read,
    runs: Sequence[Sequence[int]],
    missing: set[int],
    write: Callable[[av.VideoFrame], None],
    work: Work,
) -> set[int]:
    """Feed runs of packets; `write` gets each `missing` frame once. Returns what stays missing."""
    if not runs:
        return missing
    work.frames_used += len(missing)
    # One list for all runs: neighbouring ones lie together, and are read at once.
    packets = np.array([packet for run in runs for packet in run])
    offsets, sizes = table.offset[packets].tolist(), table.size[packets].tolist()
    ranges = byte_ranges(offsets, sizes)
    numbers, checks = table.frame[packets].tolist(), table.crc[packets].tolist()
    rows = zip(offsets, sizes, numbers, checks, strict=True)
    start = end = 0
    data = memoryview(b"")
    held: list[av.VideoFrame] = []

    def take(decoded: list[av.VideoFrame], limit: int) -> None:
        work.frames_decoded += len(decoded)
        for frame in decoded:
            if frame.pts in missing:
                missing.discard(frame.pts)
                held.append(frame)
        if len(held) >= limit:
            work.turn("scale")
            for frame in held:
                write(frame)
            held.clear()
            work.turn("decode")

    for run in runs:
        for _ in range(len(run)):
            offset, length, number, crc = next(rows)
            if not start <= offset < end:
                start, end = next(span for span in ranges if span[0] <= offset < span[1])
                data = memoryview(read(start, end))
                if len(data) != end - start:
                    raise MediaError(
                        f"is cut short: {end - start} bytes at {start}, {len(data)} are there"
                    )
            payload = data[offset - start : offset - start + length]
            if crc32(payload) != crc:
                raise MediaError(f"damaged video data: frame {number} fails its checksum")
            # Copied: a packet made of a buffer refers to it, and decoders read beyond its end.
            packet = av.Packet(length)
            packet.update(payload)  # type: ignore[arg-type]  # any buffer
            packet.pts = number if number >= 0 else None
            work.packets += 1
            if decoded := decoder.decode(packet):
                take(decoded, _TOGETHER)
        take(decoder.decode(None), _TOGETHER)
        decoder.flush_buffers()
    take([], 1)
    return missing
