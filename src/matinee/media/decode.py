"""Fused decode-crop-scale: planned packets in, pixels written straight into a batch slot.

The crop happens before scaling and colour conversion, so only pixels that are used are converted.
The default output is planar I420 at the final size (1.5 bytes a pixel): Y [H, W], then U and V
[H/2, W/2], flat in one row of `H * W * 3 / 2` bytes a frame. The device turns it into RGB.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Literal, TypeVar
from zlib import crc32

import av
import numpy as np

from matinee.errors import MediaError
from matinee.media.packets import PacketTable, VideoFormat
from matinee.media.plan import byte_ranges, packets_to_feed
from matinee.media.source import reason_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = Sequence[NDArray[np.uint8]] | NDArray[np.uint8]

Pixels = Literal["i420", "rgb"]
_K = TypeVar("_K")
_V = TypeVar("_V")

_FULL_RANGE_FORMATS = {"yuvj420p", "yuvj422p", "yuvj444p", "yuvj411p", "yuvj440p"}
_COLOR_FROM_RANGE = {True: "pc", False: "tv"}
_TOGETHER = 8  # frames decoded before they are scaled: the two evict each other from the cache
_MAX_CACHED = 16  # decoders and filter graphs kept per thread: bounded, whatever the data set


@dataclass(frozen=True)
class Box:
    """A crop in pixels of the stored frame; even, because chroma is stored at half resolution."""

    x: int
    y: int
    width: int
    height: int


def frame_bytes(size: tuple[int, int], pixels: Pixels = "i420") -> int:
    """Bytes of one output frame of `size` (height, width)."""
    height, width = size
    return height * width * 3 // 2 if pixels == "i420" else height * width * 3


class ClipDecoder:
    """Decodes clips with single-threaded decoders that it keeps and reuses.

    Not thread-safe: one per worker thread. After any error its decoders are made anew.
    """

    def __init__(self) -> None:
        self._decoders: OrderedDict[tuple[str, bytes], av.VideoCodecContext] = OrderedDict()
        self._scalers: OrderedDict[tuple[object, ...], _Scaler] = OrderedDict()

    def decode(
        self,
        fmt: VideoFormat,
        table: PacketTable,
        read: Callable[[int, int], bytes | memoryview],
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
        """
        self.decode_crops(fmt, table, read, frames, [(out, box)], size=size, pixels=pixels)

    def decode_crops(
        self,
        fmt: VideoFormat,
        table: PacketTable,
        read: Callable[[int, int], bytes | memoryview],
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
        outs: dict[Box, list[Rows]] = {}  # equal crops are scaled once
        for out, crop in crops:
            box = crop or Box(0, 0, fmt.width, fmt.height)
            _check(fmt, box, size, out, len(frames), pixels)
            outs.setdefault(box, []).append(out)
        missing = set(rows)
        try:
            decoder = self._decoder(fmt)
            for run in packets_to_feed(table, list(rows)):
                wanted = _wanted(_decode_run(decoder, table, read, run), missing)
                while some := list(islice(wanted, _TOGETHER)):
                    for box, same in outs.items():
                        for frame in some:
                            target = [out[row] for out in same for row in rows[frame.pts or 0]]
                            self.convert(fmt, frame, target, box, size, pixels)
        except (av.FFmpegError, MediaError, EOFError, PermissionError, ValueError) as error:
            self._decoders.pop((fmt.codec, fmt.extradata), None)
            if isinstance(error, MediaError):
                raise
            raise MediaError(f"damaged video data: {reason_of(error)}") from None
        if missing:
            self._decoders.pop((fmt.codec, fmt.extradata), None)
            raise MediaError(f"damaged video data: frame {min(missing)} did not decode")

    def _decoder(self, fmt: VideoFormat) -> av.VideoCodecContext:
        key = (fmt.codec, fmt.extradata)
        decoder = self._decoders.get(key)
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
            _put(self._decoders, key, decoder)
        else:
            self._decoders.move_to_end(key)
            decoder.flush_buffers()
        return decoder

    def convert(
        self,
        fmt: VideoFormat,
        frame: av.VideoFrame,
        rows: list[NDArray[np.uint8]],
        box: Box,
        size: tuple[int, int],
        pixels: Pixels,
    ) -> None:
        """Crop and scale a decoded frame into each of `rows`, as `decode` does."""
        if (frame.width, frame.height) != (fmt.width, fmt.height):
            raise MediaError(
                f"the picture changes size to {frame.width}x{frame.height}; "
                f"{fmt.width}x{fmt.height} was expected"
            )
        name = frame.format.name
        whole = size == (fmt.height, fmt.width) and box == Box(0, 0, fmt.width, fmt.height)
        if not (whole and pixels == "i420" and name in ("yuv420p", "yuvj420p")):
            key = (fmt.matrix, fmt.full_range, name, frame.colorspace, frame.color_range,
                   fmt.width, fmt.height, box, size, pixels)  # fmt: skip
            scaler = self._scalers.get(key)
            if scaler is None:
                scaler = _Scaler(fmt, frame, box, size, pixels)
                _put(self._scalers, key, scaler)
            frame = scaler(frame)
        for row in rows:
            copy_planes(frame, row, size, pixels)


class _Scaler:
    """A small FFmpeg filter graph: crop, then scale and convert in one pass."""

    def __init__(
        self,
        fmt: VideoFormat,
        frame: av.VideoFrame,
        box: Box,
        size: tuple[int, int],
        pixels: Pixels,
    ) -> None:
        graph = av.filter.Graph()
        graph.threads = 1
        source = graph.add(
            "buffer",
            f"video_size={fmt.width}x{fmt.height}:pix_fmt={frame.format.name}:time_base=1/1:"
            f"colorspace={int(frame.colorspace)}:range={int(frame.color_range)}",
        )
        crop = graph.add("crop", f"{box.width}:{box.height}:{box.x}:{box.y}:exact=1")
        in_range = _COLOR_FROM_RANGE[fmt.full_range or frame.format.name in _FULL_RANGE_FORMATS]
        height, width = size
        out_range = in_range if pixels == "i420" else "pc"
        scale = graph.add(
            "scale",
            f"{width}:{height}:flags=bilinear:in_color_matrix={fmt.matrix}:in_range={in_range}:"
            f"out_range={out_range}" + (f":out_color_matrix={fmt.matrix}" * (pixels == "i420")),
        )
        keeps_range = pixels == "i420" and frame.format.name in _FULL_RANGE_FORMATS
        target = "rgb24" if pixels == "rgb" else "yuvj420p" if keeps_range else "yuv420p"
        # A fixed format in between also spares FFmpeg the choice among all formats.
        chain = [source, crop, scale, graph.add("format", target), graph.add("buffersink")]
        for link, following in pairwise(chain):
            link.link_to(following)
        graph.configure()
        self._graph, self._source, self._sink = graph, source, chain[-1]

    def __call__(self, frame: av.VideoFrame) -> av.VideoFrame:
        self._source.push(frame)
        result = self._sink.pull()
        assert isinstance(result, av.VideoFrame)
        return result


def copy_planes(
    frame: av.VideoFrame, row: NDArray[np.uint8], size: tuple[int, int], pixels: Pixels
) -> None:
    """Copy a frame's planes, without their line padding, into one contiguous row of bytes."""
    height, width = size
    if (frame.height, frame.width) != size:
        raise MediaError(f"a frame of {frame.width}x{frame.height} does not fit {width}x{height}")
    half = (height // 2, width // 2)
    shapes = ((height, width * 3),) if pixels == "rgb" else (size, half, half)
    at = 0
    for plane, (lines, length) in zip(frame.planes, shapes, strict=True):
        pitch = plane.line_size
        padded = np.frombuffer(memoryview(plane), np.uint8, lines * pitch)
        end = at + lines * length
        row[at:end].reshape(lines, length)[:] = padded.reshape(lines, pitch)[:, :length]
        at = end


def _decode_run(
    decoder: av.VideoCodecContext,
    table: PacketTable,
    read: Callable[[int, int], bytes | memoryview],
    run: NDArray[np.int64],
) -> Iterator[av.VideoFrame]:
    """Frames of one run; each carries its display index as `pts`."""
    offsets, sizes = table.offset[run], table.size[run]
    spans = []
    for start, end in byte_ranges(offsets, sizes):
        data = memoryview(read(start, end))
        if len(data) != end - start:
            raise MediaError(f"is cut short: {end - start} bytes at {start}, {len(data)} are there")
        spans.append((start, end, data))
    start, end, data = spans[0]
    for offset, length, number, crc in zip(
        offsets.tolist(), sizes.tolist(), table.frame[run].tolist(), table.crc[run].tolist(),
        strict=True,
    ):  # fmt: skip
        if not start <= offset < end:
            start, end, data = next(span for span in spans if span[0] <= offset < span[1])
        payload = data[offset - start : offset - start + length]
        if crc32(payload) != crc:
            raise MediaError(f"damaged video data: frame {number} fails its checksum")
        packet = av.Packet(payload)  # type: ignore[arg-type]  # any buffer; copied once, here
        packet.pts = number if number >= 0 else None
        yield from decoder.decode(packet)
    yield from decoder.decode(None)
    decoder.flush_buffers()


def _wanted(frames: Iterator[av.VideoFrame], missing: set[int]) -> Iterator[av.VideoFrame]:
    """Those frames that are still missing, which they then no longer are."""
    for frame in frames:
        if frame.pts in missing:
            missing.discard(frame.pts)
            yield frame


def _check(
    fmt: VideoFormat,
    box: Box,
    size: tuple[int, int],
    out: Rows,
    count: int,
    pixels: Pixels,
) -> None:
    height, width = size
    if height < 2 or width < 2 or (pixels == "i420" and (height % 2 or width % 2)):
        raise ValueError(f"output size {height}x{width}: I420 needs even sides of 2 or more")
    inside = box.x >= 0 and box.y >= 0 and box.width >= 2 and box.height >= 2
    if not inside or box.x + box.width > fmt.width or box.y + box.height > fmt.height:
        raise ValueError(f"crop {box} does not lie inside {fmt.width}x{fmt.height}")
    if len(out) != count:
        raise ValueError(f"{len(out)} output rows for {count} frames")
    needed = frame_bytes(size, pixels)
    for row in out:
        if row.dtype != np.uint8 or row.size != needed or not row.flags.c_contiguous:
            raise ValueError(f"an output row must be {needed} contiguous bytes")


def _put(cache: OrderedDict[_K, _V], key: _K, value: _V) -> None:
    cache[key] = value
    while len(cache) > _MAX_CACHED:
        cache.popitem(last=False)
