"""From any readable video to normalised frames: the same kind of picture whatever the source.

Normalised here, once, so that nothing later has to ask: rotation and mirroring, pixel aspect,
uneven frame times, edit lists, bit depth, colour range, odd sides, interlacing.

# Note [Even spacing]
Output frames lie in slots 0, 1, 2 … of 1 / fps seconds. A frame falls into the slot nearest to its
time (half away from zero), counted from that of the first frame; it is shown until the slot of the
next one, so a pause is filled with copies, and of frames that fall into one slot the last is shown.
The last frame is shown for its duration, once at least. This is the rule of FFmpeg's `fps` filter
with `round=near`; as it needs only a frame's time and the next one's, any stretch of a video can be
spaced by itself. Where the source is even already, a frame's slot is its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import av
from av.codec.context import ThreadType

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

    A frame that is shown for several slots is yielded as often, the same object.

    Args:
        size: (width, height), from `target_size`.

    Raises:
        MediaError: damage anywhere in the file, with the number of the frame where it shows.
    """
    frames = _decoded(path, source)
    if source.interlaced:
        frames = _deinterlaced(frames, source)
    return spaced_frames(frames, source, size)


def most_frames(source: Probe) -> int:
    """More output frames than this are copies that fill gaps: such times are wrong."""
    return 10 * source.packets + 1000


def slot_of(time: int, base: Fraction, fps: Fraction) -> int:
    """The slot nearest to `time` (in units of `base`). See Note [Even spacing]."""
    over, under = time * base.numerator * fps.numerator, base.denominator * fps.denominator
    whole = (2 * abs(over) + under) // (2 * under)
    return whole if over >= 0 else -whole


def spaced_frames(
    frames: Iterable[av.VideoFrame],
    source: Probe,
    size: tuple[int, int],
    *,
    first: int = 0,
    origin: int | None = None,
    start: int = 0,
    stop: int | None = None,
) -> Iterator[av.VideoFrame]:
    """Space decoded frames evenly and normalise those that are shown, once each.

    Args:
        first: number of the first of `frames` in its video.
        origin: slot of the video's first frame, counted from time 0; taken from `frames` if None.
        start, stop: the slots to fill, `stop` excluded; to the last frame's end if None.

    Raises:
        MediaError: the times would fill the pack with copies.
    """
    normalise = _Normaliser(source, size)
    limit = most_frames(source)
    held: av.VideoFrame | None = None
    ready: av.VideoFrame | None = None
    at, slot = start, 0

    def fill(until: int) -> Iterator[av.VideoFrame]:
        nonlocal at, ready
        until = until if stop is None else min(until, stop)
        if until > limit:
            raise MediaError(f"has frame times that give {until} frames for {source.packets}")
        while held is not None and at < until:
            ready = ready or normalise(held)
            yield ready
            at += 1

    for number, frame in enumerate(frames, first):
        if source.constant:
            slot = number
        elif frame.pts is None or frame.time_base is None:
            slot += held is not None
        else:
            near = slot_of(frame.pts, frame.time_base, source.fps)
            origin = near if origin is None else origin
            slot = near - origin
        yield from fill(slot)
        held, ready = frame, None
    if held is None:
        return
    end = slot + 1
    if not source.constant and held.pts is not None and held.time_base is not None:
        after = slot_of(held.pts + (held.duration or 0), held.time_base, source.fps)
        end = max(end, after - (origin or 0))
    yield from fill(end if stop is None else stop)


def check_frame(frame: av.VideoFrame, source: Probe, number: int) -> None:
    """Refuse a frame that is damaged or unlike the first.

    Raises:
        MediaError: with `number`, the frame's place in the video.
    """
    if frame.is_corrupt:
        raise MediaError(f"is damaged at frame {number}")
    if (frame.width, frame.height) != (source.width, source.height):
        raise MediaError(
            f"changes its picture size to {frame.width}x{frame.height} at frame {number}"
        )
    if frame.format.name != source.pix_fmt:
        raise MediaError(
            f"changes its pixel format from {source.pix_fmt} to {frame.format.name} "
            f"at frame {number}"
        )
    if (int(frame.colorspace), int(frame.color_range)) != (source.colorspace, source.color_range):
        now = replace(source, colorspace=int(frame.colorspace), color_range=int(frame.color_range))
        wide = {9, 10}  # BT.2020, which becomes another matrix by the picture's height
        turned = (now.colorspace in wide) != (source.colorspace in wide)
        turned |= {now.color_range, source.color_range} == {1, 2}
        if turned or (now.matrix, now.full_range) != (source.matrix, source.full_range):
            raise MediaError(f"changes its colour matrix or range at frame {number}")


def prepare_decoder(stream: av.VideoStream) -> None:
    """Decode in one thread, and take damage for an error, never for a guessed picture."""
    stream.codec_context.thread_count = 1
    stream.codec_context.options = {"err_detect": "explode"}
    if stream.codec_context.name == "vp8":
        # FFmpeg notes that a VP8 partition ends early, but reports it from slice threads alone;
        # one thread shows green and smeared pictures without a word.
        stream.codec_context.thread_type = ThreadType.SLICE
        stream.codec_context.thread_count = 2


def _decoded(path: Source, source: Probe) -> Iterator[av.VideoFrame]:
    """Every frame of a file, each checked, and at the end their number."""
    decoded = 0
    with open_video(path) as container:
        stream = video_stream(container)
        prepare_decoder(stream)
        try:
            for packet in container.demux(stream):
                if packet.is_corrupt:
                    raise MediaError(f"is damaged after frame {decoded}: a packet is cut short")
                for frame in packet.decode():
                    assert isinstance(frame, av.VideoFrame)
                    check_frame(frame, source, decoded)
                    decoded += 1
                    yield frame
        except (av.FFmpegError, EOFError, PermissionError, ValueError) as error:
            raise MediaError(f"is damaged after frame {decoded}: {reason_of(error)}") from None
    if source.one_frame_a_packet and decoded != source.packets:
        raise MediaError(
            f"is damaged: {source.packets} frames are stored but {decoded} can be decoded"
        )


def _deinterlaced(frames: Iterator[av.VideoFrame], source: Probe) -> Iterator[av.VideoFrame]:
    """As many frames, progressive: each made from its neighbours too."""
    graph: av.filter.Graph | None = None
    for number, frame in enumerate(frames):
        if source.constant:
            frame.pts, frame.time_base = number, 1 / source.fps
        if graph is None:
            base = frame.time_base or Fraction(1, 1000)
            graph = av.filter.Graph()
            graph.threads = 1
            _link(
                graph, _buffer(graph, source, base),
                graph.add("bwdif", "mode=send_frame:deint=interlaced"), graph.add("buffersink"),
            )  # fmt: skip
        graph.push(frame)
        yield from _pulled(graph)
    if graph is not None:
        graph.push(None)
        yield from _pulled(graph)


def _pulled(graph: av.filter.Graph) -> Iterator[av.VideoFrame]:
    while True:
        try:
            frame = graph.pull()
        except (av.BlockingIOError, av.EOFError):
            return
        assert isinstance(frame, av.VideoFrame)
        yield frame


def _buffer(graph: av.filter.Graph, source: Probe, base: Fraction) -> av.filter.FilterContext:
    return graph.add(
        "buffer",
        f"video_size={source.width}x{source.height}:pix_fmt={source.pix_fmt}:"
        f"time_base={base.numerator}/{base.denominator}:pixel_aspect=1/1:"
        f"colorspace={source.colorspace}:range={source.color_range}",
    )


def _link(graph: av.filter.Graph, *chain: av.filter.FilterContext) -> None:
    for a, b in pairwise(chain):
        a.link_to(b)
    graph.configure()


class _Normaliser:
    """Turns, crops, scales and converts a frame; what it gives depends on that frame alone."""

    def __init__(self, source: Probe, size: tuple[int, int]) -> None:
        graph = av.filter.Graph()
        graph.threads = 1
        chain = [_buffer(graph, source, Fraction(1))]
        for turn in source.orientation.filters:
            name, _, args = turn.partition("=")
            chain.append(graph.add(name, args))
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
        _link(graph, *chain)
        self._graph, self._source, self._sink = graph, chain[0], chain[-1]

    def __call__(self, frame: av.VideoFrame) -> av.VideoFrame:
        self._source.push(frame)
        out = self._sink.pull()
        assert isinstance(out, av.VideoFrame)
        return out


def _scale_matrix(source: Probe) -> str:
    return "bt2020" if source.colorspace in (9, 10) else source.matrix
