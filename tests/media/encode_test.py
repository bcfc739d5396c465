"""Normalising: whatever the file does to hide its picture, frames come out upright and even."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from matinee.errors import MediaError
from matinee.media.encode import Chunk, encode_chunks
from matinee.media.normalise import normalised_frames, target_size
from matinee.media.probe import probe
from matinee.pack.profiles import NAMES, make_profile


def normalise(path: Path, short_side: int = 288) -> list[av.VideoFrame]:
    source = probe(path)
    return list(normalised_frames(path, source, target_size(source, short_side)))


def rgb(frame: av.VideoFrame, matrix: int = 5) -> NDArray[np.uint8]:
    """RGB of a limited-range frame, by another FFmpeg path than the package's filter graphs."""
    return frame.reformat(
        format="rgb24", src_colorspace=matrix, src_color_range=1, dst_color_range=2
    ).to_ndarray()


def luma(frame: av.VideoFrame) -> NDArray[np.uint8]:
    return frame.to_ndarray(format="yuv420p")[: frame.height]


def quarters(width: int, height: int) -> NDArray[np.uint8]:
    """Red, green / blue, white: no turn or mirror maps it onto itself."""
    picture = np.empty((height, width, 3), np.uint8)
    picture[: height // 2, : width // 2] = (255, 0, 0)
    picture[: height // 2, width // 2 :] = (0, 255, 0)
    picture[height // 2 :, : width // 2] = (0, 0, 255)
    picture[height // 2 :, width // 2 :] = (255, 255, 255)
    return picture


def turn_track(path: Path, a: int, b: int, c: int, d: int) -> None:
    """Write a display matrix into the track header (ISO/IEC 14496-12 §8.3.2)."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40
    one = 1 << 16
    matrix = np.array([a * one, b * one, 0, c * one, d * one, 0, 0, 0, 1 << 30], ">i4")
    data[at : at + 36] = matrix.tobytes()
    path.write_bytes(data)


def shown(picture: NDArray[np.uint8], a: int, b: int, c: int, d: int) -> NDArray[np.uint8]:
    """The matrix applied pixel by pixel: stored (x, y) goes to (a·x + c·y, b·x + d·y)."""
    height, width = picture.shape[:2]
    y, x = np.mgrid[:height, :width]
    to_x, to_y = a * x + c * y, b * x + d * y
    to_x, to_y = to_x - to_x.min(), to_y - to_y.min()
    out = np.empty((to_y.max() + 1, to_x.max() + 1, 3), np.uint8)
    out[to_y, to_x] = picture
    return out


@pytest.mark.parametrize(
    "matrix",
    [
        (1, 0, 0, 1), (0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0),
        (-1, 0, 0, 1), (1, 0, 0, -1), (0, 1, 1, 0), (0, -1, -1, 0),
    ],
    ids=["upright", "90", "180", "270", "mirrored", "upside down", "transposed", "transversed"],
)  # fmt: skip
def test_turned_and_mirrored_films_come_out_upright(tmp_path, film, matrix):
    """All eight display matrices of quarter turns and mirrors, against the matrix's own formula."""
    picture = quarters(96, 64)
    path = film(tmp_path / "a.mp4", content=[picture] * 4)
    turn_track(path, *matrix)
    frames = normalise(path)
    expected = shown(picture, *matrix)
    assert len(frames) == 4
    assert (frames[0].height, frames[0].width) == expected.shape[:2]
    got = rgb(frames[0])
    height, width = expected.shape[:2]
    for y in (height // 4, height * 3 // 4):
        for x in (width // 4, width * 3 // 4):
            assert np.abs(got[y, x].astype(int) - expected[y, x]).max() < 12, (x, y)


def test_wide_pixels_are_squared(tmp_path, film):
    """PAL widescreen, SAR 64:45: 90 stored pixels are 128 square ones."""
    picture = quarters(90, 64)
    path = film(
        tmp_path / "a.mp4", size=(90, 64), content=[picture] * 3,
        stream={"sample_aspect_ratio": Fraction(64, 45)},
    )  # fmt: skip
    source = probe(path)
    assert source.pixel_aspect == Fraction(64, 45)
    assert target_size(source, 288) == (128, 64)
    got = rgb(normalise(path)[0])
    assert got.shape == (64, 128, 3)
    assert got[10, 55, 0] > 200 and got[10, 72, 1] > 200, "the middle is no longer in the middle"


def test_tall_pixels_and_a_turn_together(tmp_path, film):
    """SAR 1:2 adds lines; the turn swaps the sides afterwards."""
    path = film(
        tmp_path / "a.mp4", size=(96, 64), content=[quarters(96, 64)] * 3,
        stream={"sample_aspect_ratio": Fraction(1, 2)},
    )  # fmt: skip
    turn_track(path, 0, 1, -1, 0)
    assert target_size(probe(path), 288) == (128, 96)
    assert normalise(path)[0].width == 128


def test_odd_sides_lose_one_line_and_are_not_resampled(tmp_path, film):
    """321x241 in 4:4:4: luma is the stored luma, less the last row and column."""
    path = film(
        tmp_path / "a.mp4", frames=3, size=(321, 241), pix_fmt="yuv444p",
        options={"preset": "ultrafast", "qp": "0"},
    )  # fmt: skip
    with av.open(str(path)) as file:
        stored = [f.to_ndarray() for f in file.decode(video=0)]
    frames = normalise(path)
    assert [(f.width, f.height, f.format.name) for f in frames] == [(320, 240, "yuv420p")] * 3
    for frame, original in zip(frames, stored, strict=True):
        assert np.array_equal(luma(frame), original[0, :240, :320])


def test_large_pictures_shrink_to_the_short_side(tmp_path, film):
    """Aspect kept, both sides even; small ones are not enlarged."""
    path = film(tmp_path / "a.mp4", frames=2, size=(160, 90))
    assert target_size(probe(path), 64) == (114, 64)
    assert target_size(probe(path), 288) == (160, 90)
    assert normalise(path, 64)[0].width == 114


@pytest.mark.parametrize("value", [64, 512, 940])
def test_ten_bits_become_eight(tmp_path, value):
    """A quarter of the ten-bit luma."""
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=25, options={"qp": "0", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p10le"
        for number in range(3):
            frame = av.VideoFrame(64, 48, "yuv420p10le")
            for plane, level in zip(frame.planes, (value, 512, 512), strict=True):
                plane.update(np.full(plane.buffer_size // 2, level, "<u2").tobytes())
            frame.pts = number
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    frames = normalise(path)
    assert frames[0].format.name == "yuv420p"
    assert np.abs(luma(frames[1]).astype(int) - value / 4).max() <= 1


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuvj420p"])
@pytest.mark.parametrize("colour", [(255, 255, 255), (0, 0, 0), (200, 40, 90)])
def test_full_range_becomes_limited_with_the_same_colours(tmp_path, film, pix_fmt, colour):
    """Luma 0–255 as tag or as pixel format: RGB stays within 4."""
    path = film(
        tmp_path / "a.mp4", pix_fmt=pix_fmt, content=[np.full((64, 96, 3), colour, np.uint8)] * 3,
        stream={"color_range": 2, "colorspace": 5}, options={"qp": "1"},
    )  # fmt: skip
    source = probe(path)
    assert source.full_range
    frame = normalise(path)[0]
    assert luma(frame).min() >= 15 and luma(frame).max() <= 236
    assert np.abs(rgb(frame).astype(int) - colour).max() <= 4


def test_irregularly_dropped_frames_are_filled_in_evenly(tmp_path, film):
    """25 fps with a third missing: 50 frames again, each showing what was on screen then."""
    rng = np.random.default_rng(1)
    times = sorted({0, 48, 49, *rng.choice(np.arange(1, 49), 32, replace=False).tolist()})
    grey = [np.full((64, 96, 3), 20 + 4 * t, np.uint8) for t in times]
    options = {"qp": "1", "g": "10", "bf": "0"}  # without B-frames the last frame lasts 1/25 s
    path = film(tmp_path / "a.mp4", content=grey, times=times, options=options)
    source = probe(path)
    assert not source.constant
    assert source.fps == 25
    assert source.duration == pytest.approx(2.0, abs=0.01)
    frames = normalise(path)
    assert len(frames) == 50
    seen = [float(rgb(frame)[32, 48].mean()) for frame in frames]
    on_screen = [20 + 4 * max(t for t in times if t <= now) for now in range(50)]
    assert np.abs(np.array(seen) - on_screen).max() < 3.5


def test_a_film_that_starts_late_starts_at_zero(tmp_path, film):
    """First time stamp 2 s: nothing is put in front, nothing is lost."""
    times = list(range(50, 80))
    grey = [np.full((64, 96, 3), 20 + 6 * (t - 50), np.uint8) for t in times]
    for name in ("a.mkv", "a.mp4"):
        path = film(tmp_path / name, content=grey, times=times, options={"qp": "1"})
        frames = normalise(path)
        assert len(frames) == 30
        assert abs(float(rgb(frames[0]).mean()) - 20) < 3
        assert probe(path).duration == pytest.approx(30 / 25)


def test_a_film_that_starts_late_and_uneven_starts_at_zero(tmp_path, film):
    """The same with frames missing in between."""
    times = [50, 51, 52, 56, 57, 58, 59, 63, 64, 65, 66, 67, 68, 69]
    grey = [np.full((64, 96, 3), 20 + 8 * (t - 50), np.uint8) for t in times]
    path = film(tmp_path / "a.mkv", content=grey, times=times, options={"qp": "1"})
    frames = normalise(path)
    assert len(frames) == 20
    assert abs(float(rgb(frames[0]).mean()) - 20) < 3


def test_a_picture_that_changes_size_midway_is_refused(tmp_path, film):
    """Two Annex B streams in one file."""
    a = film(tmp_path / "a.h264", frames=5, size=(96, 64))
    b = film(tmp_path / "b.h264", frames=5, size=(64, 64))
    both = tmp_path / "both.h264"
    both.write_bytes(a.read_bytes() + b.read_bytes())
    with pytest.raises(MediaError, match="64x64"):
        normalise(both)


def chunks_of(path: Path, profile_name: str = "layered", **settings) -> list[Chunk]:
    profile = make_profile(profile_name, **settings)
    source = probe(path)
    size = target_size(source, profile.short_side)
    return list(
        encode_chunks(
            normalised_frames(path, source, size),
            fps=source.fps,
            size=size,
            matrix=source.matrix,
            settings=profile.encoder(),
            frames_per_chunk=profile.frames_per_chunk(float(source.fps)),
        )
    )


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_layered_chunks_have_references_at_the_stride_and_disposable_frames_between(
    tmp_path, film, stride
):
    """Keys every 8 strides; a frame is kept by others only at the stride or at a GOP's end."""
    path = film(tmp_path / "a.mp4", frames=75)
    (chunk,) = chunks_of(path, stride=stride, preset="veryfast")
    table, gop = chunk.table, 8 * stride
    assert table.key_frames.tolist() == list(range(0, 75, gop))
    for frame in range(75):
        inside, last = frame % gop, min(frame // gop * gop + gop, 75) - 1
        expected = inside % stride != 0 and frame != last
        assert bool(table.disposable[table.packet_of[frame]]) == expected, frame


def test_intra_chunks_are_all_keys(tmp_path, film):
    (chunk,) = chunks_of(film(tmp_path / "a.mp4", frames=20), "intra", preset="veryfast")
    assert chunk.table.key.all() and len(chunk.table.key) == 20


def test_chunks_are_whole_gops_and_together_the_film(tmp_path, film):
    """70 frames in chunks of 32; each an MP4 that opens alone."""
    path = film(tmp_path / "a.mp4", frames=70)
    chunks = chunks_of(path, chunk_seconds=1.0, preset="veryfast")
    assert [chunk.table.num_frames for chunk in chunks] == [32, 32, 6]
    for chunk in chunks:
        with av.open(io.BytesIO(chunk.data)) as file:
            frames = list(file.decode(video=0))
        assert len(frames) == chunk.table.num_frames
        assert frames[0].key_frame
        assert chunk.format.extradata == chunks[0].format.extradata


def test_lossless_chunks_hold_the_frames_they_were_given(tmp_path, film):
    """crf 0 is lossless: decoding gives the normalised frames bit for bit."""
    path = film(tmp_path / "a.mp4", frames=20)
    (chunk,) = chunks_of(path, crf=0, preset="veryfast")
    given = [f.to_ndarray(format="yuv420p") for f in normalise(path)]
    with av.open(io.BytesIO(chunk.data)) as file:
        stored = [f.to_ndarray(format="yuv420p") for f in file.decode(video=0)]
    assert np.array_equal(np.stack(given), np.stack(stored))


@pytest.mark.parametrize("name", ["layered", "small", "intra"])
@pytest.mark.parametrize("preset", ["ultrafast", "veryfast", "medium"])
def test_the_same_frames_give_the_same_bytes(tmp_path, film, name, preset):
    """Packs are reproducible, whatever lay in the memory that the encoder is given."""
    path = film(tmp_path / "a.mp4", frames=40)
    kept, seen = [], set()
    for number in range(8):
        kept.append(np.random.default_rng(number).bytes(300_000 * (number % 3 + 1)))
        seen.add(b"".join(chunk.data for chunk in chunks_of(path, name, preset=preset)))
    assert len(seen) == 1, f"{len(seen)} different results of 8 runs"


@pytest.mark.parametrize("name", NAMES)
def test_another_process_gives_the_same_bytes(tmp_path, film, name):
    """Nothing of a process's state, address space or time is in a chunk."""
    path = film(tmp_path / "a.mp4", frames=40)
    here = hashlib.sha256(b"".join(chunk.data for chunk in chunks_of(path, name))).hexdigest()
    program = f"""
import hashlib, sys
from pathlib import Path
sys.path[:0] = [{str(Path(__file__).parent)!r}]
from encode_test import chunks_of
data = b"".join(chunk.data for chunk in chunks_of(Path({str(path)!r}), {name!r}))
print(hashlib.sha256(data).hexdigest())
"""
    there = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert there.stdout.strip() == here


@pytest.mark.parametrize(
    ("name", "stride"), [("small", 4), *(("layered", s) for s in (1, 2, 4, 8))]
)
def test_references_decode_alike_without_what_lies_between(tmp_path, film, name, stride):
    """Every frame at the spacing, and each GOP alone: pixels of the whole decode."""
    path = film(tmp_path / "a.mp4", frames=75)
    (chunk,) = chunks_of(path, name, stride=stride, gop=16 if name == "small" else None)
    table = chunk.table
    gop = 16 if name == "small" else 8 * stride
    assert table.key_frames.tolist() == list(range(0, 75, gop)), "each GOP can be begun with"
    everything = list(range(len(table.size)))
    whole = decoded(chunk, everything)
    assert sorted(whole) == list(range(75))
    kept = [p for p in everything if not table.disposable[p]]
    assert len(kept) <= 75 / stride + 75 / 16 + 2
    alone = decoded(chunk, kept)
    assert sorted(alone) == sorted(table.frame[kept].tolist())
    for frame, picture in alone.items():
        assert np.array_equal(picture, whole[frame]), frame
    keys = [*np.flatnonzero(table.key).tolist(), len(everything)]
    for first, end in pairwise(keys):
        part = decoded(chunk, everything[first:end])
        assert len(part) == end - first
        for frame, picture in part.items():
            assert np.array_equal(picture, whole[frame]), frame


def decoded(chunk: Chunk, packets: list[int]) -> dict[int, NDArray[np.uint8]]:
    """Frames by display index that FFmpeg's decoder makes of some packets, in order."""
    decoder = av.CodecContext.create(chunk.format.codec, "r")
    decoder.extradata, decoder.thread_count = chunk.format.extradata, 1
    decoder.options = {"err_detect": "explode"}
    frames: list[av.VideoFrame] = []
    for number in packets:
        at, size = int(chunk.table.offset[number]), int(chunk.table.size[number])
        packet = av.Packet(chunk.data[at : at + size])
        packet.pts = int(chunk.table.frame[number])
        frames += decoder.decode(packet)
    frames += decoder.decode(None)
    return {frame.pts: frame.to_ndarray(format="yuv420p") for frame in frames}


def test_colours_survive_from_file_to_chunk(tmp_path, film):
    """bt601 and bt709 films of one colour: the chunk's own tags give the colour back."""
    for tag, matrix in ((5, "bt601"), (1, "bt709")):
        path = film(
            tmp_path / f"{matrix}.mp4", content=[np.full((64, 96, 3), (180, 60, 90), np.uint8)] * 4,
            stream={"colorspace": tag, "color_range": 1}, options={"qp": "1"},
        )  # fmt: skip
        (chunk,) = chunks_of(path, crf=1, preset="veryfast")
        assert chunk.format.matrix == matrix
        with av.open(io.BytesIO(chunk.data)) as file:
            frame = next(file.decode(video=0))
        assert int(frame.colorspace) == {"bt601": 6, "bt709": 1}[matrix]
        assert int(frame.color_range) == 1
        assert np.abs(rgb(frame, tag).astype(int) - (180, 60, 90)).max() <= 4
