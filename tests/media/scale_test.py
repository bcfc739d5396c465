"""The scaler: the same bytes compiled and in NumPy, other libraries' within rounding."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional

from matinee.media import scale
from matinee.media.scale import TAPS, can_scale, make_scaler, taps


@dataclass(frozen=True)
class Case:
    picture: tuple[int, int]
    crop: tuple[int, int, int, int]
    size: tuple[int, int]


@st.composite
def cases(draw) -> Case:
    """Pictures of odd sides too; crops anywhere; up to twice as large and far smaller outputs."""
    crop, size, picture, start = [], [], [], []
    for _ in range(2):
        half = draw(st.integers(1, 60))
        before, after = draw(st.integers(0, 20)), draw(st.integers(0, 20))
        picture.append(2 * (before + half + after) + draw(st.integers(0, 1)))
        start.append(2 * before)
        crop.append(2 * half)
        size.append(2 * draw(st.integers((half + 1) // 2, 2 * half + 5)))
    return Case(tuple(picture), (*start, *crop), tuple(size))


def noise(height: int, width: int, seed: int) -> av.VideoFrame:
    frame = av.VideoFrame(width, height, "yuv420p")
    rng = np.random.default_rng(seed)
    for plane in frame.planes:
        plane.update(rng.integers(0, 256, plane.buffer_size, dtype=np.uint8).tobytes())
    return frame


def planes_of(frame: av.VideoFrame) -> list[np.ndarray]:
    return [
        np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:, : plane.width]
        for plane in frame.planes
    ]


def rows_by(kind: type, case: Case, frame: av.VideoFrame, pixels: str) -> np.ndarray:
    height, width = case.size
    row = np.zeros(height * width * 3 // (2 if pixels == "i420" else 1) + 64, np.uint8)
    inner = row[32:-32]
    kind(case.picture, case.crop, case.size, pixels, "bt709", False)(frame, inner)
    assert not row[:32].any() and not row[-32:].any(), "bytes around the row were written"
    return inner


needs_compiled = pytest.mark.skipif(
    scale.library() is None, reason="the scaler was not compiled: no C compiler"
)


@needs_compiled
@settings(max_examples=300, deadline=None)
@given(cases(), st.sampled_from(["i420", "rgb"]), st.integers(0, 2**31))
def test_compiled_and_numpy_give_the_same_bytes(case, pixels, seed):
    """For every size, crop and output: all of them, and none beside the row."""
    frame = noise(*case.picture, seed)
    compiled = rows_by(scale._Compiled, case, frame, pixels)
    assert np.array_equal(compiled, rows_by(scale._Numpy, case, frame, pixels))


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(0, 2**31))
def test_planes_are_those_of_an_antialiased_bilinear_resize(case, seed):
    """torchvision's, of which each pass may round the other way: within 2, and hardly ever 2."""
    frame = noise(*case.picture, seed)
    height, width = case.size
    row = np.empty(height * width * 3 // 2, np.uint8)
    make_scaler(
        case.picture, case.crop, case.size, pixels="i420", matrix="bt601", full_range=False
    )(frame, row)
    top, left, crop_height, crop_width = case.crop
    parts = []
    for number, plane in enumerate(planes_of(frame)):
        s = 1 if number == 0 else 2
        crop = plane[top // s :, left // s :][: crop_height // s, : crop_width // s]
        part = torch.from_numpy(crop.copy())[None]
        parts.append(functional.resize(part, [height // s, width // s], antialias=True).flatten())
    away = np.abs(row.astype(int) - torch.cat(parts).numpy().astype(int))
    assert away.max() <= 2 and away.mean() < 0.35


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from([128, 32768]))
def test_weights_are_the_triangle_filter_and_add_up(length, count, one):
    """Against the formula in exact fractions; the largest weight takes the rounding."""
    if length > 2 * count:
        return
    at, weight = taps(length, count, one)
    assert at.shape == weight.shape == (count, TAPS)
    assert (weight.sum(axis=1) == one).all() and (weight >= 0).all() and weight.max() < one
    assert at.min() >= 0 and at.max() < length
    step = Fraction(length, count)
    reach = max(step, Fraction(1))
    for i in {0, count // 2, count - 1}:
        middle = (i + Fraction(1, 2)) * step - Fraction(1, 2)
        raw = {j: max(Fraction(0), 1 - abs(j - middle) / reach) for j in range(length)}
        total = sum(raw.values())
        found: dict[int, int] = {}
        for j, w in zip(at[i].tolist(), weight[i].tolist(), strict=True):
            found[j] = found.get(j, 0) + w
        for j, share in raw.items():
            assert abs(found.get(j, 0) - share / total * one) <= 2, (i, j)


@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("matrix", ["bt601", "bt709"])
def test_colours_are_those_of_the_matrix_and_range(matrix, full_range):
    """Flat colours against libswscale, within its rounding."""
    numbers = {"bt601": 5, "bt709": 1}
    for y, u, v in [(16, 128, 128), (235, 128, 128), (81, 90, 240), (145, 54, 34), (200, 60, 190)]:
        frame = av.VideoFrame(32, 32, "yuv420p")
        for plane, value in zip(frame.planes, (y, u, v), strict=True):
            plane.update(bytes([value]) * plane.buffer_size)
        row = np.empty(32 * 32 * 3, np.uint8)
        make_scaler(
            (32, 32), (0, 0, 32, 32), (32, 32), pixels="rgb", matrix=matrix, full_range=full_range
        )(frame, row)
        expected = frame.reformat(
            format="rgb24", src_colorspace=numbers[matrix], dst_colorspace=numbers[matrix],
            src_color_range=2 if full_range else 1, dst_color_range=2,
        ).to_ndarray()  # fmt: skip
        assert np.abs(row[:3].astype(int) - expected[0, 0].astype(int)).max() <= 2
        assert (row.reshape(-1, 3) == row[:3]).all()


@pytest.mark.parametrize(
    ("crop", "size", "can"),
    [((64, 64), (32, 32), True), ((66, 64), (32, 32), False), ((2, 2), (900, 2), True)],
)
def test_at_most_two_pixels_a_step(crop, size, can):
    """More would need more taps; FFmpeg's filters do that."""
    assert can_scale(crop, size) is can
    if can:
        make_scaler(crop, (0, 0, *crop), size, pixels="i420", matrix="bt601", full_range=False)
    elif scale.library() is not None:
        with pytest.raises(ValueError, match="cannot be scaled"):
            make_scaler(crop, (0, 0, *crop), size, pixels="i420", matrix="bt601", full_range=False)


@pytest.mark.parametrize("crop", [(0, 0, 66, 64), (2, 0, 64, 64), (0, -2, 64, 64), (0, 0, 0, 64)])
def test_a_crop_outside_the_picture_is_refused(crop):
    """Before anything is planned."""
    with pytest.raises(ValueError, match="inside"):
        make_scaler((64, 64), crop, (64, 64), pixels="i420", matrix="bt601", full_range=False)


def test_a_frame_with_smaller_planes_than_it_ought_to_have_is_refused():
    """Nothing is read beyond them."""
    scaler = make_scaler(
        (64, 64), (0, 0, 64, 64), (32, 32), pixels="i420", matrix="bt601", full_range=False
    )
    with pytest.raises(ValueError, match="plane"):
        scaler(noise(32, 32, 0), np.empty(32 * 32 * 3 // 2, np.uint8))


def test_without_a_compiled_scaler_a_warning_says_so(monkeypatch, tmp_path):
    """And NumPy's is taken, once warned."""
    monkeypatch.setattr(scale, "__file__", str(tmp_path / "scale.py"))
    scale.library.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="C compiler"):
            found = make_scaler(
                (8, 8), (0, 0, 8, 8), (8, 8), pixels="i420", matrix="bt601", full_range=False
            )
        assert isinstance(found, scale._Numpy)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert scale.library() is None
    finally:
        scale.library.cache_clear()
