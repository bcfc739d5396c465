"""What a file really is, read from its packets and first frame rather than from its header."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import av
import numpy as np
from av.video.frame import PictureType

from matinee.errors import MediaError
from matinee.media.boxes import check_claims
from matinee.media.color import MATRICES
from matinee.media.source import (
    FrameFolder,
    Source,
    open_bytes,
    open_video,
    reason_of,
    size_of,
    video_stream,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Codecs where every packet that is shown gives exactly one frame.
_ONE_FRAME_A_PACKET = {"h264", "hevc", "libdav1d", "av1", "mjpeg", "png"}
# Decoders that paint a frame grey or green where what it refers to is missing, without an error.
_GUESSING = {"mpeg4", "h263", "flv", "msmpeg4v1", "msmpeg4v2", "msmpeg4", "wmv1", "wmv2"}
_REFERRING = {PictureType.P, PictureType.B, PictureType.S}
_STILL_IMAGES = ("image2", "png_pipe", "jpeg_pipe", "webp_pipe", "bmp_pipe", "tiff_pipe")


# Rates above need more than a header to be believed: 600 or 1000 are usual slips of muxers.
_BELIEVED_RATE = 240
_RATES = (
    *(Fraction(n) for n in range(1, _BELIEVED_RATE + 1)),
    *(Fraction(n * 1000, 1001) for n in (24, 30, 48, 60, 120, 240)),
)


@dataclass(frozen=True)
class Orientation:
    """How a stored frame must be turned to be shown: filters in order, and whether sides swap."""

    filters: tuple[str, ...] = ()
    swaps_sides: bool = False


# Signs of (a, b, c, d) of a display matrix → the filters that apply it.
_KNOWN_TURNS = {
    (1, 0, 0, 1): Orientation(),
    (-1, 0, 0, 1): Orientation(("hflip",)),
    (1, 0, 0, -1): Orientation(("vflip",)),
    (-1, 0, 0, -1): Orientation(("hflip", "vflip")),
    (0, 1, -1, 0): Orientation(("transpose=clock",), True),
    (0, -1, 1, 0): Orientation(("transpose=cclock",), True),
    (0, 1, 1, 0): Orientation(("transpose=cclock_flip",), True),
    (0, -1, -1, 0): Orientation(("transpose=clock_flip",), True),
}


@dataclass(frozen=True)
class Probe:
    """One file's video. `fps` frames a second, `packets` that are shown, `duration` seconds.

    `constant` is False when frames are not evenly spaced in time; `pixel_aspect` is the width of
    a pixel over its height.
    """

    width: int
    height: int
    pix_fmt: str
    colorspace: int
    color_range: int
    fps: Fraction
    packets: int
    duration: float
    constant: bool
    interlaced: bool
    one_frame_a_packet: bool
    pixel_aspect: Fraction
    orientation: Orientation

    @property
    def matrix(self) -> str:
        """The YCbCr matrix, "bt601" or "bt709": as tagged, else by the usual rule of height."""
        return MATRICES.get(self.colorspace, "bt709" if self.height >= 720 else "bt601")

    @property
    def full_range(self) -> bool:
        """Whether luma spans 0–255."""
        return self.color_range == 2 or self.pix_fmt.startswith("yuvj")


def probe(path: Source) -> Probe:
    """Read all packet headers of a source and decode its first frame.

    Raises:
        MediaError: no moving picture, truncated, or nothing decodes.
    """
    length = size_of(path)
    if length == 0:
        raise MediaError("is empty (0 bytes)")
    if not isinstance(path, FrameFolder):
        with open_bytes(path) as file:
            check_claims(file, length)
    with open_video(path) as container:
        stream = video_stream(container)
        still = container.format.name.split(",")[0] in _STILL_IMAGES
        if still and not isinstance(path, FrameFolder):
            raise MediaError(f"is a still image ({container.format.name}), not a video")
        past = [e for e in stream.index_entries if e.pos + e.size > length]
        if past:
            raise MediaError(
                f"is truncated: {len(past)} of {len(stream.index_entries)} frames lie "
                f"beyond its end"
            )
        times = _packet_times(container, stream)
        base = stream.time_base or Fraction(1, 1000)
        nominal = Fraction(stream.average_rate or stream.guessed_rate or 25)
        others = _longest_other(container, stream)
        codec = stream.codec_context.name
    first = _first_frame(path)
    times = _without_lead(times, first)
    spaced = _spacing(times.shown, base, nominal)
    fps = spaced.fps or (nominal if nominal <= _BELIEVED_RATE else Fraction(25))
    if not times.stated and not spaced.constant:
        raise MediaError(
            "gives its frames no times of presentation, and stores them unevenly, so that they "
            "have no place in time"
        )
    if fps > _BELIEVED_RATE and others > 2 * times.count / fps + 0.5:
        raise MediaError(
            f"claims {float(fps):.0f} frames a second, all within {float(times.count / fps):.2f} s "
            f"of its {others:.2f} s: its frame times are wrong"
        )
    if not spaced.constant and spaced.span * float(fps) > 10 * times.count + 1000:
        raise MediaError(
            f"has frame times that span {spaced.span:.0f} s for {times.count} frames: a gap that "
            "would be filled with copies"
        )
    if not 0 < fps <= 1000:
        raise MediaError(f"claims an impossible frame rate of {float(fps):g}")
    return Probe(
        width=first.width,
        height=first.height,
        pix_fmt=first.format.name,
        colorspace=int(first.colorspace),
        color_range=int(first.color_range),
        fps=fps,
        packets=times.count,
        duration=times.count / float(fps) if spaced.constant else spaced.span + 1 / float(fps),
        constant=spaced.constant,
        interlaced=bool(first.interlaced_frame),
        one_frame_a_packet=codec in _ONE_FRAME_A_PACKET and not first.interlaced_frame,
        pixel_aspect=first.pixel_aspect,
        orientation=first.orientation,
    )


@dataclass(frozen=True)
class _Times:
    """Sorted times of the `count` packets that are shown, those that have one.

    `stated` is False where they are times of decoding, for want of others; `key` tells whether
    the first packet is a keyframe.
    """

    shown: NDArray[np.int64]
    count: int
    stated: bool
    key: bool


def _packet_times(container: av.container.InputContainer, stream: av.VideoStream) -> _Times:
    pts: list[int] = []
    dts: list[int] = []
    count, key = 0, None
    try:
        for packet in container.demux(stream):
            if not packet.size:
                continue
            if key is None:
                key = packet.is_keyframe
                if packet.has_sidedata("encryption_info"):
                    raise MediaError("is encrypted")
            if packet.is_discard:
                continue
            if packet.is_corrupt:
                raise MediaError(f"is damaged: packet {count} is marked corrupt or cut short")
            count += 1
            if packet.pts is not None:
                pts.append(packet.pts)
            if packet.dts is not None:
                dts.append(packet.dts)
    except av.FFmpegError as error:
        raise MediaError(f"is damaged: {reason_of(error)}") from None
    if not count:
        raise MediaError("holds a video stream without frames")
    times = np.sort(np.array(pts or dts, dtype=np.int64))
    return _Times(times, count, bool(pts) or not dts, bool(key))


def _without_lead(times: _Times, first: _First) -> _Times:
    """The times from the first frame on that decodes.

    A file may begin at a keyframe whose first frames refer to what was before (an open GOP, such
    as every cut of a broadcast has); no player shows them.
    """
    if first.pts is None or not times.stated:
        return times
    lead = int(np.searchsorted(times.shown, first.pts))
    if lead and not times.key:
        raise MediaError(
            f"begins with {lead} frames that need an earlier one, which is not there: cut it at a "
            "keyframe"
        )
    return replace(times, shown=times.shown[lead:], count=times.count - lead)


def _longest_other(container: av.container.InputContainer, stream: av.VideoStream) -> float:
    """Seconds of the longest of the other streams, or of all together as the header has it."""
    stated = [
        float(other.duration * other.time_base)
        for other in container.streams
        if other is not stream and other.duration and other.time_base
    ]
    return max(stated, default=(container.duration or 0) / 1_000_000)


@dataclass(frozen=True)
class _Spacing:
    fps: Fraction | None
    constant: bool
    span: float


def _spacing(pts: NDArray[np.int64], base: Fraction, nominal: Fraction) -> _Spacing:
    """Constant if no frame is half a frame or more away from an even grid."""
    if len(pts) < 2 or pts[-1] == pts[0]:
        return _Spacing(None, True, 0.0)
    ticks = int(pts[-1] - pts[0])
    grid = np.arange(len(pts)) * (ticks / (len(pts) - 1))
    step = ticks / (len(pts) - 1)
    span = ticks * float(base)
    if np.abs(pts - pts[0] - grid).max() < 0.5 * step:
        rate = Fraction(len(pts) - 1, 1) / (ticks * base)
        return _Spacing(_customary(rate, len(pts) - 1, base, nominal), True, span)
    median = Fraction(float(np.median(np.diff(pts))))
    return _Spacing(
        _customary(1 / (median * base), 1, base, 1 / (median * base)) if median else None,
        False,
        span,
    )


def _customary(rate: Fraction, steps: int, tick: Fraction, nominal: Fraction) -> Fraction:
    """The rate that was meant by `rate`, which `steps` intervals between rounded times have.

    The file's own `nominal` rate or a customary one, if rounding times to the container's `tick`
    explains the difference, or if it is so small that no frame moves by a tenth; else a short
    fraction.
    """

    def may_be(known: Fraction) -> bool:
        moved = steps * abs(1 / known - 1 / rate)
        return moved <= tick or (abs(known - rate) <= rate / 1000 and moved * rate <= 1 / 10)

    aim = nominal if may_be(nominal) else rate
    for known in sorted(_RATES, key=lambda known: abs(known - aim)):
        if may_be(known) and abs(known - aim) <= (aim / 1000 if aim == nominal else aim):
            return known
    return aim.limit_denominator(1001)


@dataclass(frozen=True)
class _First:
    width: int
    height: int
    format: av.VideoFormat
    colorspace: int
    color_range: int
    interlaced_frame: bool
    pixel_aspect: Fraction
    orientation: Orientation
    pts: int | None


def _first_frame(path: Source) -> _First:
    with open_video(path) as container:
        stream = video_stream(container)
        try:
            frame = next(container.decode(stream), None)
        except (av.FFmpegError, EOFError, PermissionError, ValueError) as error:
            raise MediaError(f"does not decode: {reason_of(error)}") from None
        if frame is None:
            raise MediaError("does not decode: no frame comes out")
        if stream.codec_context.name in _GUESSING and frame.pict_type in _REFERRING:
            raise MediaError(
                "begins with a frame that needs an earlier one, which is not there: cut it at a "
                "keyframe"
            )
        aspect = stream.sample_aspect_ratio
        return _First(
            frame.width,
            frame.height,
            frame.format,
            frame.colorspace,
            frame.color_range,
            frame.interlaced_frame,
            Fraction(aspect) if aspect else Fraction(1),
            _orientation(frame),
            frame.pts,
        )


def _orientation(frame: av.VideoFrame) -> Orientation:
    try:
        matrix = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:
        # PyAV refuses to list side data of kinds it has no name for; the angle is still given.
        turn = {0: (1, 0, 0, 1), 90: (0, -1, 1, 0), 180: (-1, 0, 0, -1), -180: (-1, 0, 0, -1),
                -90: (0, 1, -1, 0)}.get(round(frame.rotation))  # fmt: skip
        if turn is None:
            raise MediaError("is to be shown turned by an unusual angle") from None
        return _KNOWN_TURNS[turn]
    return Orientation() if matrix is None else orientation_of(bytes(matrix))  # type: ignore[call-overload]


def orientation_of(matrix: bytes) -> Orientation:
    """Filters that undo a display matrix (ISO/IEC 14496-12 §8.5.2: nine 32-bit fixed-point).

    The matrix maps stored (x, y) to shown (x', y') = (a·x + c·y, b·x + d·y). Only its signs matter:
    quarter turns and mirrors.

    Raises:
        MediaError: another angle.
    """
    if len(matrix) < 36:
        raise MediaError("carries a damaged display matrix")
    a, b, _, c, d = struct.unpack("=5i", matrix[:20])
    signs = tuple((v > 0) - (v < 0) if abs(v) > 1000 else 0 for v in (a, b, c, d))
    if not any(matrix[:20]):  # left empty by some writers; every player shows it as it is stored
        return Orientation()
    if signs not in _KNOWN_TURNS:
        raise MediaError("is to be shown turned by an angle that is not a quarter turn")
    return _KNOWN_TURNS[signs]
