"""From any readable video to normalised frames: the same kind of picture whatever the source.

Normalised here, once, so that nothing later has to ask: rotation and mirroring, pixel aspect,
uneven frame times, edit lists, bit depth, colour range, odd sides, interlacing.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

import av

from matinee.errors import MediaError
from matinee.media.probe import Probe
from matinee.media.source import Source, open_video, reason_of, video_stream

_RANGE_NAMES = {True: "pc", False: "tv"}


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


def normalised_frames(
    path: Source, source: Probe, size: tuple[int, int]
) -> Iterator[av.VideoFrame]:
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
