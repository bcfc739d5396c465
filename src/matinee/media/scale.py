"""Crop, scale and convert a decoded 4:2:0 picture straight into a row of bytes.

# Note [The scaler]
Each axis is filtered with a triangle as wide as the step between output pixels, at least two input
pixels: linear interpolation where a picture grows, and its antialiased form where it shrinks
(bilinear with `antialias=True` in torchvision and Pillow). Taps outside the crop are left out and
the others weighted up. Weights are integers of 7 bits across and 15 bits down, made of integers
alone, so that the bytes are the same on every machine.

`_scale.c` does this with AVX2, or in plain C elsewhere. It is compiled when matinee is installed;
where there was no C compiler, NumPy computes the same bytes, many times slower, and a warning says
so.
"""

from __future__ import annotations

import ctypes
import warnings
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import av
import numpy as np
from av.video.plane import VideoPlane

from matinee.media.color import ycbcr_to_rgb

if TYPE_CHECKING:
    from numpy.typing import NDArray

TAPS = 4  # of each output pixel, an axis
MAX_STEP = 2  # input pixels for each output pixel: more would need more taps


class Scaler(Protocol):
    """Scales the crop it was made for.

    Whoever calls has checked that `frame` is of the size and format the scaler was made for, and
    that `row` has exactly the bytes of the output.
    """

    def __call__(self, frame: av.VideoFrame, row: NDArray[np.uint8]) -> None:
        """Write the scaled crop of a 4:2:0 `frame` into `row`."""


def can_scale(crop: tuple[int, int], size: tuple[int, int]) -> bool:
    """Whether a crop (height, width) can be brought to `size` (height, width) here."""
    return all(0 < a <= MAX_STEP * b for a, b in zip(crop, size, strict=True))


def make_scaler(
    picture: tuple[int, int],
    crop: tuple[int, int, int, int],
    size: tuple[int, int],
    *,
    pixels: Literal["i420", "rgb"],
    matrix: str,
    full_range: bool,
) -> Scaler:
    """A scaler for frames of one size.

    Args:
        picture: (height, width) of the frames.
        crop: (top, left, height, width), even, inside the picture.
        size: (height, width) of the output, even for I420; see `can_scale`.
        matrix, full_range: of the stored colours, for RGB.
    """
    kind = _Numpy if library() is None else _Compiled
    return kind(picture, crop, size, pixels, matrix, full_range)


def taps(length: int, count: int, one: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which input pixels make each output pixel, and their weights, both [count, TAPS].

    Weights of an output pixel add up to `one`. See Note [The scaler].
    """
    place = (2 * np.arange(count)[:, None] + 1) * length - count  # in 1 / (2 · count) pixels
    reach = 2 * max(length, count)
    first = np.maximum(place // (2 * count) - reach // (2 * count) - 1, 0)
    at = first + np.arange(TAPS + 4)
    raw = np.where((at >= 0) & (at < length), reach - np.abs(2 * count * at - place), 0)
    raw = np.maximum(raw, 0)
    # The first tap that counts, and the three behind it.
    start = np.argmax(raw > 0, axis=1)[:, None] + np.arange(TAPS)
    at, raw = np.take_along_axis(at, start, 1), np.take_along_axis(raw, start, 1)
    total = raw.sum(axis=1, keepdims=True)
    weight = (2 * one * raw + total) // (2 * total)
    every, largest = np.arange(count), np.argmax(weight, axis=1)
    weight[every, largest] += one - weight.sum(axis=1)
    # A whole weight does not fit the compiled code's types: it is two halves there, and here.
    whole = np.flatnonzero(weight[every, largest] == one)
    at[whole] = at[whole, largest[whole]][:, None]
    weight[whole] = [one // 2, one // 2, *[0] * (TAPS - 2)]
    return np.minimum(at, length - 1), weight


@cache
def library() -> ctypes.CDLL | None:
    """The compiled scaler; None, with a warning, where it was not compiled."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_scale{suffix}")
        if path.exists():
            break
    else:
        warnings.warn(
            "pictures are scaled by NumPy, many times slower: matinee was installed without a C "
            "compiler; install gcc (or clang), then matinee again",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    loaded = ctypes.CDLL(str(path))
    pointer, number, long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    loaded.matinee_plan_bytes.argtypes = [number, number]
    loaded.matinee_plan_bytes.restype = long
    loaded.matinee_plan.argtypes = [pointer, *[number] * 5]
    loaded.matinee_i420.argtypes = [*[pointer] * 5, long, long, pointer, number]
    loaded.matinee_rgb.argtypes = [*[pointer] * 5, long, long, *[pointer] * 3, number]
    return loaded


class _Base:
    def __init__(
        self,
        picture: tuple[int, int],
        crop: tuple[int, int, int, int],
        size: tuple[int, int],
        pixels: Literal["i420", "rgb"],
        matrix: str,
        full_range: bool,
    ) -> None:
        top, left, height, width = crop
        half = (top // 2, left // 2, height // 2, width // 2)
        small = (size[0] // 2, size[1] // 2) if pixels == "i420" else size
        chroma = ((picture[0] + 1) // 2, (picture[1] + 1) // 2)
        inside = top + height <= picture[0] and left + width <= picture[1]
        if min(*crop[:2], *half[2:]) < 0 or not half[2] or not half[3] or not inside:
            raise ValueError(f"crop {crop} does not lie inside {picture}")
        self._pixels = pixels
        self._planes = ((picture, crop, size), (chroma, half, small))
        self._limits = (picture, chroma, chroma)
        self._bytes = size[0] * size[1] * 3 // (2 if pixels == "i420" else 1)
        if pixels == "rgb":
            self._map = np.rint(ycbcr_to_rgb(matrix, full_range) * (255 * 8192)).astype(np.int32)
            self._map[:, 3] += 4096  # rounds

    def _check(self, planes: tuple[VideoPlane, ...]) -> None:
        """Refuse planes that are smaller than they ought to be."""
        if len(planes) != 3:
            raise ValueError(f"a frame of {len(planes)} planes")
        for plane, (height, width) in zip(planes, self._limits, strict=True):
            stride = plane.line_size
            if stride < width or plane.buffer_size < stride * height:
                raise ValueError(f"a plane of {plane.buffer_size} bytes for {width}x{height}")


class _Compiled(_Base):
    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        lib = library()
        assert lib is not None
        self._memory = []  # of the plans, and for RGB of the scaled planes
        pointers = []
        for (_, width), (_, left, crop_height, crop_width), (out_height, out_width) in self._planes:
            plan = np.empty(_plan_bytes(out_width, out_height), np.uint8)
            at = _address(plan)
            if lib.matinee_plan(at, crop_width, crop_height, width - left, out_width, out_height):
                raise ValueError(
                    f"{crop_width}x{crop_height} cannot be scaled to {out_width}x{out_height}"
                )
            self._memory.append(plan)
            pointers.append(at)
        self._plans = tuple(pointers)
        self._more: tuple[int, ...] = ()
        self._call = lib.matinee_i420
        if self._pixels == "rgb":
            self._memory.append(np.empty(self._bytes, np.uint8))
            self._more = (_address(self._memory[-1]), _address(self._map))
            self._call = lib.matinee_rgb
        self._strides = (0, 0, 0)  # of frames whose planes were found good
        self._skip = (0, 0)

    def __call__(self, frame: av.VideoFrame, row: NDArray[np.uint8]) -> None:
        y, cb, cr = frame.planes
        strides = (y.line_size, cb.line_size, cr.line_size)
        if strides != self._strides:
            self._check((y, cb, cr))
            if strides[1] != strides[2]:
                raise ValueError("the chroma planes of a frame have lines of different length")
            skip = [
                crop[0] * stride + crop[1]
                for (_, crop, _), stride in zip(self._planes, strides, strict=False)
            ]
            self._strides, self._skip = strides, (skip[0], skip[1])
        whole, half = self._skip
        self._call(
            *self._plans,
            y.buffer_ptr + whole,
            cb.buffer_ptr + half,
            cr.buffer_ptr + half,
            strides[0],
            strides[1],
            *self._more,
            _address(row),
            1,
        )


@cache
def _plan_bytes(out_width: int, out_height: int) -> int:
    lib = library()
    assert lib is not None
    size: int = lib.matinee_plan_bytes(out_width, out_height)
    return size


def _address(array: NDArray[Any]) -> int:
    """Where an array's bytes begin; `array.ctypes.data` says the same, ten times slower."""
    address: int = array.__array_interface__["data"][0]
    return address


class _Numpy(_Base):
    """The same in NumPy: what the compiled code is held to, and the way without it."""

    def __call__(self, frame: av.VideoFrame, row: NDArray[np.uint8]) -> None:
        scaled = []
        self._check(frame.planes)
        kinds = (self._planes[0], self._planes[1], self._planes[1])
        for plane, (_, (top, left, height, width), size) in zip(frame.planes, kinds, strict=True):
            lines = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
            scaled.append(_scale(lines[top : top + height, left : left + width], size))
        if self._pixels == "i420":
            row[: self._bytes] = np.concatenate([plane.reshape(-1) for plane in scaled])
            return
        ycc = np.stack([*scaled, np.ones_like(scaled[0])], axis=-1).astype(np.int32)
        row[: self._bytes] = np.clip((ycc @ self._map.T) >> 13, 0, 255).reshape(-1)


def _scale(crop: NDArray[np.uint8], size: tuple[int, ...]) -> NDArray[np.uint8]:
    """One plane, [H, W] to `size`."""
    if crop.shape == size:
        return crop
    at, weight = taps(crop.shape[1], size[1], 128)
    lines = (crop.astype(np.int32)[:, at] * weight).sum(axis=2)  # [H, W']
    at, weight = taps(crop.shape[0], size[0], 32768)
    # Each product is rounded by itself, as the processor's instruction does.
    products = (((lines[at] * weight[:, :, None]) >> 14) + 1) >> 1  # [H', TAPS, W']
    result: NDArray[np.uint8] = np.minimum((products.sum(axis=1) + 64) >> 7, 255).astype(np.uint8)
    return result
