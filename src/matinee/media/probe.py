"""What a file really is, read from its packets and first frame rather than from its header."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import av
import numpy as np

from matinee.errors import MediaError
from matinee.media.source import open_video, reason_of, video_stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Coefficients by FFmpeg's AVColorSpace number (ITU-T H.273 MatrixCoefficients).
_MATRIX = {1: "bt709", 5: "bt601", 6: "bt601"}
# Codecs where every packet that is shown gives exactly one frame.
_ONE_FRAME_A_PACKET = {"h264", "hevc", "libdav1d", "av1", "mjpeg", "png"}
_STILL_IMAGES = ("image2", "png_pipe", "jpeg_pipe", "webp_pipe", "bmp_pipe", "tiff_pipe")


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
        return _MATRIX.get(self.colorspace, "bt709" if self.height >= 720 else "bt601")

    @property
    def full_range(self) -> bool:
        """Whether luma spans 0–255."""
        return self.color_range == 2 or self.pix_fmt.startswith("yuvj")


def probe(path: Path) -> Probe:
    """Read all packet headers of a file and decode its first frame.

    Raises:
        MediaError: no moving picture, truncated, or nothing decodes.
    """
    length = path.stat().st_size
    if length == 0:
        raise MediaError("is empty (0 bytes)")
    with open_video(path) as container:
        stream = video_stream(container)
        if container.format.name.split(",")[0] in _STILL_IMAGES:
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
        codec = stream.codec_context.name
    first = _first_frame(path)
    spaced = _spacing(times.shown, base)
    fps = spaced.fps or nominal
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
    shown: NDArray[np.int64]
    count: int


def _packet_times(container: av.container.InputContainer, stream: av.VideoStream) -> _Times:
    pts: list[int] = []
    count = 0
    try:
        for packet in container.demux(stream):
            if not packet.size or packet.is_discard:
                continue
            if packet.is_corrupt:
                raise MediaError(f"is damaged: packet {count} is marked corrupt or cut short")
            count += 1
            if packet.pts is not None:
                pts.append(packet.pts)
    except av.FFmpegError as error:
        raise MediaError(f"is damaged: {reason_of(error)}") from None
    if not count:
        raise MediaError("holds a video stream without frames")
    return _Times(np.sort(np.array(pts, dtype=np.int64)), count)


@dataclass(frozen=True)
class _Spacing:
    fps: Fraction | None
    constant: bool
    span: float


def _spacing(pts: NDArray[np.int64], base: Fraction) -> _Spacing:
    """Constant if no frame is half a frame or more away from an even grid."""
    if len(pts) < 2 or pts[-1] == pts[0]:
        return _Spacing(None, True, 0.0)
    ticks = int(pts[-1] - pts[0])
    grid = np.arange(len(pts)) * (ticks / (len(pts) - 1))
    step = ticks / (len(pts) - 1)
    span = ticks * float(base)
    if np.abs(pts - pts[0] - grid).max() < 0.5 * step:
        rate = Fraction(len(pts) - 1, 1) / (ticks * base)
        return _Spacing(_tidy(rate), True, span)
    median = float(np.median(np.diff(pts)))
    return _Spacing(_tidy(1 / (Fraction(median) * base)) if median else None, False, span)


def _tidy(rate: Fraction) -> Fraction:
    """The nearest customary frame rate within 0.1 %, else a short fraction."""
    whole = [Fraction(n) for n in range(1, 121)]
    ntsc = [Fraction(n * 1000, 1001) for n in (24, 30, 48, 60, 120)]
    for known in (*whole, *ntsc):
        if abs(rate - known) <= Fraction(1, 10_000) * known:
            return known
    close = [known for known in whole if abs(rate - known) <= Fraction(1, 1000) * known]
    return close[0] if close else rate.limit_denominator(1001)


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


def _first_frame(path: Path) -> _First:
    with open_video(path) as container:
        stream = video_stream(container)
        try:
            frame = next(container.decode(stream), None)
        except (av.FFmpegError, EOFError, PermissionError, ValueError) as error:
            raise MediaError(f"does not decode: {reason_of(error)}") from None
        if frame is None:
            raise MediaError("does not decode: no frame comes out")
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
    if signs not in _KNOWN_TURNS:
        raise MediaError("is to be shown turned by an angle that is not a quarter turn")
    return _KNOWN_TURNS[signs]
