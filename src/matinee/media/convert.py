"""From decoded frames to rows of bytes: crop, scale and convert in one pass.

I420 is planar YCbCr 4:2:0 at the final size (1.5 bytes a pixel): Y [H, W], then U and V
[H/2, W/2], flat in one row of `H * W * 3 / 2` bytes a frame. The device turns it into RGB.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import av
import numpy as np

from matinee.errors import MediaError
from matinee.media.color import MATRICES
from matinee.media.packets import VideoFormat
from matinee.media.scale import Scaler, can_scale, make_scaler

if TYPE_CHECKING:
    from numpy.typing import NDArray

Pixels = Literal["i420", "rgb"]

_FULL_RANGE_FORMATS = {"yuvj420p", "yuvj422p", "yuvj444p", "yuvj411p", "yuvj440p"}
_SCALED_HERE = {"yuv420p", "yuvj420p"}
_SAID = {True: "full range", False: "limited range"}
_COLOR_FROM_RANGE = {True: "pc", False: "tv"}


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


class Converter:
    """Writes one crop of frames, scaled to `size` (height, width), into rows of bytes.

    Raises:
        ValueError: a crop outside the picture, an odd size for I420.
    """

    def __init__(self, fmt: VideoFormat, box: Box, size: tuple[int, int], pixels: Pixels) -> None:
        height, width = size
        if height < 2 or width < 2 or (pixels == "i420" and (height % 2 or width % 2)):
            raise ValueError(f"output size {height}x{width}: I420 needs even sides of 2 or more")
        inside = box.x >= 0 and box.y >= 0 and box.width >= 2 and box.height >= 2
        if not inside or box.x + box.width > fmt.width or box.y + box.height > fmt.height:
            raise ValueError(f"crop {box} does not lie inside {fmt.width}x{fmt.height}")
        self._fmt, self._box, self._size, self._pixels = fmt, box, size, pixels
        self._bytes = frame_bytes(size, pixels)
        self._kind: tuple[object, ...] | None = None
        self._scaler: Scaler | None = None

    def check(self, row: NDArray[np.uint8]) -> None:
        """Refuse memory that a frame does not fit.

        Raises:
            ValueError: not `frame_bytes` contiguous bytes.
        """
        if row.dtype != np.uint8 or row.size != self._bytes or not row.flags.c_contiguous:
            raise ValueError(f"an output row must be {self._bytes} contiguous bytes")

    def __call__(self, frame: av.VideoFrame, row: NDArray[np.uint8]) -> None:
        """Convert a frame into a row that `check` found good.

        Raises:
            MediaError: the frame is of another size than the format says.
        """
        kind = (frame.width, frame.height, frame.format.name, frame.colorspace, frame.color_range)
        if kind != self._kind or self._scaler is None:
            self._scaler = self._make(frame)
            self._kind = kind
        self._scaler(frame, row)

    def _make(self, frame: av.VideoFrame) -> Scaler:
        fmt, box = self._fmt, self._box
        if (frame.width, frame.height) != (fmt.width, fmt.height):
            raise MediaError(
                f"the picture changes size to {frame.width}x{frame.height}; "
                f"{fmt.width}x{fmt.height} was expected"
            )
        name = frame.format.name
        matrix = MATRICES.get(int(frame.colorspace), fmt.matrix)
        expected = fmt.full_range or name in _FULL_RANGE_FORMATS
        full_range = {1: False, 2: True}.get(int(frame.color_range), expected)
        if (matrix, full_range) != (fmt.matrix, expected):
            raise MediaError(
                f"the picture changes its colours to {matrix}, {_SAID[full_range]}; "
                f"{fmt.matrix}, {_SAID[expected]} were expected"
            )
        if name in _SCALED_HERE and can_scale((box.height, box.width), self._size):
            return make_scaler(
                (fmt.height, fmt.width), (box.y, box.x, box.height, box.width), self._size,
                pixels=self._pixels, matrix=fmt.matrix,
                full_range=fmt.full_range or name in _FULL_RANGE_FORMATS,
            )  # fmt: skip
        return _FilterScaler(fmt, frame, box, self._size, self._pixels)


class _FilterScaler:
    """A small FFmpeg filter graph, for other pixel formats and for pictures much larger than the
    output: crop, then scale and convert in one pass.
    """

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
        self._size, self._pixels = size, pixels

    def __call__(self, frame: av.VideoFrame, row: NDArray[np.uint8]) -> None:
        self._source.push(frame)
        result = self._sink.pull()
        assert isinstance(result, av.VideoFrame)
        copy_planes(result, row, self._size, self._pixels)


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
