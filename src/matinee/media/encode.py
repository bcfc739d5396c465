"""From any readable video to normalised frames to chunks: ordinary MP4 files of closed GOPs.

Normalised here, once, so that nothing later has to ask: rotation and mirroring, pixel aspect,
uneven frame times, edit lists, bit depth, colour range, odd sides, interlacing.

# Note [Same frames, same bytes]
A pack must not depend on when it was made. x264 gives the same bytes for the same number of
threads, with one exception found by measuring: x264 165 with AVX-512 and macroblock-tree rate
control, at widths that are no multiple of 128, gave other bytes (and pixels) from call to call.
Held to AVX2 it is reproducible, at the same size. So: one thread, and AVX2 where there is AVX-512.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

import av

from matinee.errors import MediaError
from matinee.media.packets import (
    PacketTable,
    VideoFormat,
    open_video,
    reason_of,
    scan_packets,
    video_stream,
)
from matinee.media.probe import Probe

_RANGE_NAMES = {True: "pc", False: "tv"}
_COLORSPACE_TAG = {"bt601": 6, "bt709": 1}


@dataclass(frozen=True)
class EncoderSettings:
    """x264 settings of a chunk. `stride` is the spacing of reference frames.

    See Note [Temporal layers] in media/packets.py.
    """

    stride: int
    gop: int
    crf: int
    preset: str
    fast_decode: bool

    def x264(self) -> dict[str, str]:
        """Options for libx264: closed GOPs of fixed length, every B-frame disposable."""
        layers = (
            f"keyint={self.gop}:min-keyint={self.gop}:scenecut=0:open-gop=0:"
            f"bframes={self.stride - 1}:b-adapt=0:b-pyramid=none:{reproducible()}"
        )
        options = {"preset": self.preset, "crf": str(self.crf), "x264-params": layers}
        if self.fast_decode:
            options["tune"] = "fastdecode"
        return options


@cache
def reproducible() -> str:
    """x264 parameters under which the same frames give the same bytes.

    See Note [Same frames, same bytes].
    """
    try:
        has_avx512 = "avx512f" in Path("/proc/cpuinfo").read_text()
    except OSError:
        has_avx512 = False
    return "threads=1:asm=avx2" if has_avx512 else "threads=1"


@dataclass(frozen=True)
class Chunk:
    """One encoded chunk: `data` is a whole MP4 file."""

    data: bytes
    table: PacketTable
    format: VideoFormat


def target_size(source: Probe, short_side: int) -> tuple[int, int]:
    """(width, height) after turning upright, squaring pixels and shrinking; both even."""
    width, height = Fraction(source.width), Fraction(source.height)
    if source.pixel_aspect > 1:
        width *= source.pixel_aspect
    else:
        height /= source.pixel_aspect
    if source.orientation.swaps_sides:
        width, height = height, width
    shrink = min(Fraction(1), Fraction(short_side) / min(width, height))
    even = [max(2, 2 * int(side * shrink / 2 + Fraction(1, 2))) for side in (width, height)]
    if shrink == 1 and source.pixel_aspect == 1:  # only drop the odd line, do not resample
        even = [max(2, int(side) // 2 * 2) for side in (width, height)]
    if max(even) > 16384:
        raise MediaError(f"has an impossible picture of {even[0]}x{even[1]}")
    return even[0], even[1]


def normalised_frames(path: Path, source: Probe, size: tuple[int, int]) -> Iterator[av.VideoFrame]:
    """Frames of a file as upright, square-pixel, evenly spaced, limited-range yuv420p.

    Args:
        size: (width, height), from `target_size`.

    Raises:
        MediaError: damage anywhere in the file, with the number of the frame where it shows.
    """
    graph: _Normaliser | None = None
    decoded = 0
    with open_video(path) as container:
        stream = video_stream(container)
        stream.codec_context.thread_count = 1
        stream.codec_context.options = {"err_detect": "explode"}
        try:
            for packet in container.demux(stream):
                if packet.is_corrupt:
                    raise MediaError(f"is damaged after frame {decoded}: a packet is cut short")
                for frame in packet.decode():
                    assert isinstance(frame, av.VideoFrame)
                    if frame.is_corrupt:
                        raise MediaError(f"is damaged at frame {decoded}")
                    if (frame.width, frame.height) != (source.width, source.height):
                        raise MediaError(
                            f"changes its picture size to {frame.width}x{frame.height} "
                            f"at frame {decoded}"
                        )
                    graph = graph or _Normaliser(frame, source, size, stream.time_base)
                    if source.constant:
                        frame.pts = decoded
                        frame.time_base = 1 / source.fps
                    decoded += 1
                    yield from graph.push(frame)
        except (av.FFmpegError, EOFError, PermissionError, ValueError) as error:
            raise MediaError(f"is damaged after frame {decoded}: {reason_of(error)}") from None
    if source.one_frame_a_packet and decoded != source.packets:
        raise MediaError(
            f"is damaged: {source.packets} frames are stored but {decoded} can be decoded"
        )
    if graph is not None:
        yield from graph.push(None)


class _Normaliser:
    def __init__(
        self,
        frame: av.VideoFrame,
        source: Probe,
        size: tuple[int, int],
        time_base: Fraction | None,
    ) -> None:
        base = 1 / source.fps if source.constant else (time_base or Fraction(1, 1000))
        graph = av.filter.Graph()
        graph.threads = 1
        chain = [
            graph.add(
                "buffer",
                f"video_size={source.width}x{source.height}:pix_fmt={source.pix_fmt}:"
                f"time_base={base.numerator}/{base.denominator}:pixel_aspect=1/1:"
                f"colorspace={int(frame.colorspace)}:range={int(frame.color_range)}",
            )
        ]
        if source.interlaced:
            chain.append(graph.add("bwdif", "mode=send_frame:deint=interlaced"))
        for turn in source.orientation.filters:
            name, _, args = turn.partition("=")
            chain.append(graph.add(name, args))
        if not source.constant:
            chain.append(graph.add("fps", f"fps={source.fps}:round=near"))
        width, height = size
        shown = (source.width, source.height)
        if source.orientation.swaps_sides:
            shown = shown[::-1]
        if source.pixel_aspect == 1 and shown[0] - width in (0, 1) and shown[1] - height in (0, 1):
            chain.append(graph.add("crop", f"{width}:{height}:0:0:exact=1"))
        is_rgb = source.colorspace == 0 and not source.pix_fmt.startswith(("yuv", "nv", "gray"))
        matrix_in = "" if is_rgb else f"in_color_matrix={_scale_matrix(source)}:"
        range_in = "" if is_rgb else f"in_range={_RANGE_NAMES[source.full_range]}:"
        chain.append(
            graph.add(
                "scale",
                f"{width}:{height}:flags=bicubic:{matrix_in}{range_in}"
                f"out_color_matrix={source.matrix}:out_range=tv",
            )
        )
        chain.append(graph.add("format", "yuv420p"))
        chain.append(graph.add("buffersink"))
        for a, b in pairwise(chain):
            a.link_to(b)
        graph.configure()
        self._graph, self._source, self._sink = graph, chain[0], chain[-1]

    def push(self, frame: av.VideoFrame | None) -> Iterator[av.VideoFrame]:
        self._source.push(frame)
        while True:
            try:
                out = self._sink.pull()
            except (av.BlockingIOError, av.EOFError):
                return
            assert isinstance(out, av.VideoFrame)
            yield out


def _scale_matrix(source: Probe) -> str:
    return "bt2020" if source.colorspace in (9, 10) else source.matrix


def encode_chunks(
    frames: Iterator[av.VideoFrame],
    *,
    fps: Fraction,
    size: tuple[int, int],
    matrix: str,
    settings: EncoderSettings,
    frames_per_chunk: int,
) -> Iterator[Chunk]:
    """Encode frames into consecutive chunks of `frames_per_chunk` (the last may be shorter).

    Encoding uses one thread, so the same frames always give the same bytes.
    """
    encoder: _ChunkEncoder | None = None
    for frame in frames:
        encoder = encoder or _ChunkEncoder(fps, size, matrix, settings)
        encoder.add(frame)
        if encoder.count == frames_per_chunk:
            yield encoder.finish()
            encoder = None
    if encoder is not None:
        yield encoder.finish()


class _ChunkEncoder:
    def __init__(
        self, fps: Fraction, size: tuple[int, int], matrix: str, settings: EncoderSettings
    ) -> None:
        self.count = 0
        self._size, self._matrix = size, matrix
        self._buffer = io.BytesIO()
        self._file = av.open(self._buffer, "w", format="mp4")
        self._stream = self._file.add_stream("libx264", rate=fps, options=settings.x264())
        self._stream.width, self._stream.height = size
        self._stream.pix_fmt = "yuv420p"
        self._base = 1 / fps
        context = self._stream.codec_context
        context.time_base = self._base
        context.thread_count = 1
        context.colorspace = _COLORSPACE_TAG[matrix]
        context.color_range = 1

    def add(self, frame: av.VideoFrame) -> None:
        frame.pts, frame.time_base = self.count, self._base
        frame.pict_type = 0  # the encoder decides, not the source
        self._file.mux(self._stream.encode(frame))
        self.count += 1

    def finish(self) -> Chunk:
        self._file.mux(self._stream.encode(None))
        self._file.close()
        data = self._buffer.getvalue()
        scan = scan_packets(data)
        if scan.table.num_frames != self.count:
            raise MediaError(f"encoder gave {scan.table.num_frames} frames for {self.count}")
        width, height = self._size
        fmt = VideoFormat(
            scan.codec, width, height, "yuv420p", scan.extradata, self._matrix, full_range=False
        )
        return Chunk(data, scan.table, fmt)
