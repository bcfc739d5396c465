"""Random access through `ClipDecoder` equals decoding the same file from start to end."""

from __future__ import annotations

import contextlib
import signal
import zlib
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional

from matinee.errors import MediaError
from matinee.media.decode import Box, ClipDecoder, frame_bytes
from matinee.media.packets import PacketTable, VideoFormat, scan_packets

WIDTH, HEIGHT, COUNT = 96, 64, 70

# name → encoder, file ending, encoder options
ENCODINGS = {
    "x264 defaults": ("libx264", "mp4", {"preset": "medium"}),
    "x264 short GOPs, B-pyramid": (
        "libx264", "mp4",
        {"preset": "medium", "x264-params": "keyint=24:bframes=5:b-pyramid=normal:b-adapt=0"},
    ),
    "x264 open GOP": (
        "libx264", "mp4",
        {"preset": "medium", "x264-params": "keyint=12:min-keyint=12:open-gop=1:bframes=3"},
    ),
    "x264 open GOP, B-pyramid": (
        "libx264", "mp4",
        {"preset": "medium",
         "x264-params": "keyint=12:scenecut=0:open-gop=1:bframes=5:b-adapt=0:b-pyramid=normal"},
    ),
    "x264 layered": (
        "libx264", "mp4",
        {"preset": "medium", "tune": "fastdecode",
         "x264-params": "keyint=32:min-keyint=32:scenecut=0:bframes=3:b-adapt=0:b-pyramid=none"},
    ),
    "x264 intra": ("libx264", "mp4", {"preset": "medium", "g": "1"}),
    "x264 intra refresh": (
        "libx264", "mp4", {"preset": "medium", "x264-params": "keyint=20:intra-refresh=1"},
    ),
    "x264 in Matroska": ("libx264", "mkv", {"preset": "medium", "g": "20"}),
    "x264 in AVI": ("libx264", "avi", {"preset": "medium", "g": "20", "bf": "0"}),
    "x264 in FLV": ("libx264", "flv", {"preset": "medium", "g": "20"}),
    "MPEG-4 with B-frames": ("mpeg4", "mp4", {"bf": "2", "g": "12"}),
    "VP9": (
        "libvpx-vp9", "webm",
        {"deadline": "good", "cpu-used": "8", "g": "20", "auto-alt-ref": "1",
         "lag-in-frames": "16"},
    ),
    "VP8 with hidden frames": (
        "libvpx", "webm",
        {"deadline": "good", "cpu-used": "5", "g": "20", "auto-alt-ref": "1",
         "lag-in-frames": "16"},
    ),
    "HEVC open GOP": (
        "libx265", "mp4",
        {"preset": "ultrafast", "x265-params": "keyint=12:bframes=4:log-level=none:pools=none"},
    ),
    "AV1": ("libsvtav1", "mp4", {"preset": "12", "g": "20"}),
    "Motion JPEG": ("mjpeg", "mov", {}),
}  # fmt: skip


def format_of(path: Path, *, matrix: str = "bt601", full_range: bool = False) -> VideoFormat:
    """What PyAV's own first frame says."""
    scan = scan_packets(path)
    with av.open(str(path)) as file:
        first = next(file.decode(video=0))
    return VideoFormat(
        scan.codec, first.width, first.height, first.format.name, scan.extradata, matrix, full_range
    )


def read_from(data: bytes):
    return lambda start, end: data[start:end]


def i420_rows(frames: int, size: tuple[int, int]) -> np.ndarray:
    return np.zeros((frames, frame_bytes(size)), np.uint8)


@pytest.fixture(scope="module")
def sample(tmp_path_factory, film):
    """A yuv420p H.264 film, its bytes, table and format."""
    path = film(tmp_path_factory.mktemp("sample") / "a.mp4", frames=40, size=(WIDTH, HEIGHT))
    return path, path.read_bytes(), scan_packets(path).table, format_of(path)


@pytest.mark.parametrize("name", ENCODINGS)
def test_random_access_equals_sequential_decoding(name, tmp_path, film, sequential):
    """Any frames in any order, whole pictures, bit for bit."""
    codec, ending, options = ENCODINGS[name]
    if codec not in av.codecs_available:
        pytest.skip(f"this PyAV cannot encode {codec}")
    pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    path = film(
        tmp_path / f"a.{ending}", frames=COUNT, size=(WIDTH, HEIGHT), codec=codec, options=options,
        pix_fmt=pix_fmt,
    )  # fmt: skip
    if pix_fmt == "yuvj420p":
        with av.open(str(path)) as file:
            frames = [f.to_ndarray().reshape(-1) for f in file.decode(video=0)]
    else:
        frames = sequential(path)
    assert len(frames) == COUNT
    data, fmt, table = path.read_bytes(), format_of(path), scan_packets(path).table
    assert table.num_frames == COUNT
    decoder = ClipDecoder()
    rng = np.random.default_rng(0)
    wishes = [rng.integers(0, COUNT, rng.integers(1, 9)) for _ in range(20)]
    wishes += [np.array([frame]) for frame in range(COUNT)]
    for wanted in wishes:
        out = i420_rows(len(wanted), (HEIGHT, WIDTH))
        decoder.decode(fmt, table, read_from(data), wanted, out, size=(HEIGHT, WIDTH))
        for row, frame in zip(out, wanted, strict=True):
            assert np.array_equal(row, frames[frame]), f"frame {frame} of {wanted.tolist()}"


def test_repeated_and_unordered_frames_each_get_their_row(sample, sequential):
    """Rows follow the wish, not the display order."""
    path, data, table, fmt = sample
    frames, wanted = sequential(path), [30, 2, 2, 39, 0, 30]
    out = i420_rows(len(wanted), (HEIGHT, WIDTH))
    ClipDecoder().decode(fmt, table, read_from(data), wanted, out, size=(HEIGHT, WIDTH))
    assert np.array_equal(out, np.stack([frames[i] for i in wanted]))


def test_no_frames_touch_nothing(sample):
    """An empty clip reads no byte."""
    _, _, table, fmt = sample
    ClipDecoder().decode(fmt, table, pytest.fail, [], i420_rows(0, (64, 96)), size=(64, 96))


def test_skipped_disposable_packets_are_never_read(tmp_path, film, sequential):
    """Their bytes are overwritten with noise, and the other frames do not change."""
    options = {"x264-params": "keyint=32:scenecut=0:bframes=3:b-adapt=0:b-pyramid=none"}
    path = film(tmp_path / "a.mp4", frames=32, options={"preset": "medium", **options})
    frames, table, fmt = sequential(path), scan_packets(path).table, format_of(path)
    assert table.disposable.sum() >= 20
    data = bytearray(path.read_bytes())
    for packet in np.flatnonzero(table.disposable):
        a, n = int(table.offset[packet]), int(table.size[packet])
        data[a : a + n] = b"\xff" * n
    wanted = [int(f) for f in table.frame[~table.disposable]]
    out = i420_rows(len(wanted), (64, 96))
    ClipDecoder().decode(fmt, table, read_from(bytes(data)), wanted, out, size=(64, 96))
    assert np.array_equal(out, np.stack([frames[i] for i in wanted]))


@pytest.mark.parametrize(
    "box", [Box(0, 0, 32, 32), Box(10, 6, 40, 20), Box(7, 5, 40, 20), Box(64, 44, 32, 20)]
)
def test_a_crop_without_scaling_is_the_very_pixels(sample, sequential, box):
    """NumPy slices of the planes; chroma begins at half the offset, rounded down."""
    path, data, table, fmt = sample
    size = (box.height, box.width)
    out = i420_rows(2, size)
    ClipDecoder().decode(fmt, table, read_from(data), [3, 21], out, size=size, box=box)
    for row, frame in zip(out, (3, 21), strict=True):
        flat = sequential(path)[frame]
        y = flat[: WIDTH * HEIGHT].reshape(HEIGHT, WIDTH)
        u, v = flat[WIDTH * HEIGHT :].reshape(2, HEIGHT // 2, WIDTH // 2)
        parts = [y[box.y : box.y + box.height, box.x : box.x + box.width]]
        for plane in (u, v):
            top, left = box.y // 2, box.x // 2
            parts.append(plane[top : top + box.height // 2, left : left + box.width // 2])
        assert np.array_equal(row, np.concatenate([part.reshape(-1) for part in parts]))


def cut_planes(flat: np.ndarray, box: Box) -> list[np.ndarray]:
    """A crop of a picture, by NumPy: three planes."""
    y = flat[: WIDTH * HEIGHT].reshape(HEIGHT, WIDTH)
    chroma = flat[WIDTH * HEIGHT :].reshape(2, HEIGHT // 2, WIDTH // 2)
    small = np.s_[box.y // 2 : (box.y + box.height) // 2, box.x // 2 : (box.x + box.width) // 2]
    whole = y[box.y : box.y + box.height, box.x : box.x + box.width]
    return [np.ascontiguousarray(part) for part in (whole, *(plane[small] for plane in chroma))]


@pytest.mark.parametrize("size", [(40, 56), (32, 48), (96, 128)])
@pytest.mark.parametrize("box", [Box(10, 6, 40, 32), Box(0, 0, WIDTH, HEIGHT)])
def test_crop_and_scale_equal_scaling_the_cropped_picture(sample, sequential, box, size):
    """Within roundings of torchvision's antialiased resize of a picture that NumPy cropped."""
    path, data, table, fmt = sample
    out = i420_rows(1, size)
    ClipDecoder().decode(fmt, table, read_from(data), [17], out, size=size, box=box)
    parts = []
    for number, part in enumerate(cut_planes(sequential(path)[17], box)):
        to = [side // (2 if number else 1) for side in size]
        parts.append(functional.resize(torch.from_numpy(part)[None], to, antialias=True).flatten())
    difference = np.abs(out[0].astype(int) - torch.cat(parts).numpy().astype(int))
    assert difference.max() <= 2 and difference.mean() < 0.3


@pytest.mark.parametrize("box", [Box(10, 6, 40, 36), Box(0, 0, WIDTH, HEIGHT)])
def test_crops_far_larger_than_the_output_equal_libswscale(sample, sequential, box):
    """On a picture that NumPy cropped: nearly always the same bytes."""
    path, data, table, fmt = sample
    out = i420_rows(1, (16, 16))
    ClipDecoder().decode(fmt, table, read_from(data), [17], out, size=(16, 16), box=box)
    packed = np.concatenate([part.reshape(-1) for part in cut_planes(sequential(path)[17], box)])
    picture = av.VideoFrame.from_ndarray(packed.reshape(-1, box.width), format="yuv420p")
    expected = picture.reformat(16, 16, "yuv420p", interpolation="BILINEAR").to_ndarray()
    difference = np.abs(out[0].astype(int) - expected.reshape(-1).astype(int))
    assert difference.max() <= 2 and (difference > 0).mean() < 0.05


class Counting:
    """A decoder that counts its packets and frames."""

    def __init__(self, decoder) -> None:
        self.decoder, self.packets, self.frames = decoder, 0, 0

    def decode(self, packet):
        frames = self.decoder.decode(packet)
        self.packets += packet is not None
        self.frames += len(frames)
        return frames

    def flush_buffers(self) -> None:
        self.decoder.flush_buffers()


@pytest.mark.parametrize("pixels", ["i420", "rgb"])
def test_several_crops_are_those_of_separate_decodes_by_one_decoders_work(
    sample, pixels, monkeypatch
):
    """Boxes that differ, two that are equal, the whole picture; frames repeat. Bytes, packets,
    frames and reads against one decode for each crop."""
    _, data, table, fmt = sample
    wanted, size = [30, 2, 2, 39, 9], (32, 40)
    boxes = [Box(10, 6, 40, 32), None, Box(0, 0, 96, 64), Box(10, 6, 40, 32), Box(50, 20, 44, 44)]
    length = frame_bytes(size, pixels)
    reads, counted = [], []
    make = ClipDecoder._decoder

    def counting(self, fmt):
        counted.append(Counting(make(self, fmt)))
        return counted[-1]

    def read(start, end):
        reads.append((start, end))
        return data[start:end]

    monkeypatch.setattr(ClipDecoder, "_decoder", counting)

    def work():
        done = (sum(c.packets for c in counted), sum(c.frames for c in counted), len(reads))
        counted.clear()
        reads.clear()
        return done

    separate = np.zeros((len(boxes), len(wanted), length), np.uint8)
    for out, box in zip(separate, boxes, strict=True):
        ClipDecoder().decode(fmt, table, read, wanted, out, size=size, box=box, pixels=pixels)
    alone = work()
    together = np.zeros_like(separate)
    crops = list(zip(together, boxes, strict=True))
    ClipDecoder().decode_crops(fmt, table, read, wanted, crops, size=size, pixels=pixels)
    assert np.array_equal(together, separate)
    assert len({crop.tobytes() for crop in together}) == 3
    assert work() == tuple(count / len(boxes) for count in alone) and alone[0] > 0


def test_one_crop_that_does_not_fit_refuses_all_before_anything_is_read(sample):
    _, _, table, fmt = sample
    crops = [(i420_rows(1, (32, 32)), None), (i420_rows(1, (32, 32)), Box(80, 0, 32, 32))]
    with pytest.raises(ValueError, match="96x64"):
        ClipDecoder().decode_crops(fmt, table, pytest.fail, [0], crops, size=(32, 32))


def ycbcr_to_rgb(y: float, cb: float, cr: float, matrix: str, full: bool) -> np.ndarray:
    """ITU-T H.273 in float64: the formula, without FFmpeg."""
    kr, kb = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}[matrix]
    luma = y / 255 if full else (y - 16) / 219
    pb, pr = ((c - 128) / (255 if full else 224) for c in (cb, cr))
    r, b = luma + 2 * (1 - kr) * pr, luma + 2 * (1 - kb) * pb
    g = (luma - kr * r - kb * b) / (1 - kr - kb)
    return np.clip(np.array([r, g, b]) * 255, 0, 255)


@pytest.mark.parametrize("full", [False, True], ids=["limited", "full"])
@pytest.mark.parametrize("matrix", ["bt601", "bt709"])
@pytest.mark.parametrize("yuv", [(81, 90, 210), (145, 54, 34), (41, 200, 110), (180, 128, 128)])
@pytest.mark.parametrize("tagged", [True, False], ids=["tagged", "untagged"])
def test_colours_are_those_of_the_formula(tmp_path, yuv, matrix, full, tagged):
    """A film of one YCbCr value, lossless, gives its RGB within 3; format says matrix and range."""
    path = tmp_path / "solid.mp4"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=25, options={"qp": "0", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        if tagged:
            stream.codec_context.colorspace = {"bt601": 6, "bt709": 1}[matrix]
            stream.codec_context.color_range = 2 if full else 1
        planes = [np.full(64 * 48, yuv[0]), np.full(32 * 24, yuv[1]), np.full(32 * 24, yuv[2])]
        flat = np.concatenate(planes).astype(np.uint8).reshape(-1, 64)
        for number in range(3):
            frame = av.VideoFrame.from_ndarray(flat, format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    fmt = format_of(path, matrix=matrix, full_range=full)
    for size, box in (((48, 64), None), ((24, 24), Box(8, 8, 32, 32))):
        out = np.zeros((1, size[0] * size[1] * 3), np.uint8)
        ClipDecoder().decode(
            fmt, scan_packets(path).table, read_from(path.read_bytes()), [1], out,
            size=size, box=box, pixels="rgb",
        )  # fmt: skip
        rgb = out.reshape(*size, 3).astype(float)
        expected = ycbcr_to_rgb(*yuv, matrix, full)
        assert np.abs(rgb - expected).max() <= 3, (rgb[5, 5], expected)


@pytest.mark.parametrize("full", [False, True], ids=["limited", "full"])
def test_i420_output_keeps_luma_untouched_by_range(tmp_path, full):
    """Scaling I420 converts no colours: a plane of one value stays that value."""
    path = tmp_path / "solid.mp4"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=25, options={"qp": "0", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.color_range = 2 if full else 1
        flat = np.concatenate([np.full(3072, 60), np.full(768, 90), np.full(768, 170)])
        frame = av.VideoFrame.from_ndarray(flat.astype(np.uint8).reshape(-1, 64), format="yuv420p")
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    out = i420_rows(1, (24, 32))
    ClipDecoder().decode(
        format_of(path, full_range=full), scan_packets(path).table, read_from(path.read_bytes()),
        [0], out, size=(24, 32),
    )  # fmt: skip
    assert set(out[0, : 24 * 32].tolist()) == {60}
    assert set(out[0, 24 * 32 : 24 * 32 * 5 // 4].tolist()) == {90}
    assert set(out[0, 24 * 32 * 5 // 4 :].tolist()) == {170}


@pytest.mark.parametrize("seed", range(5))
def test_noise_in_a_packet_is_a_media_error_and_the_decoder_lives_on(sample, sequential, seed):
    """Damage is never guessed over, and the next clip is whole."""
    path, data, table, fmt = sample
    rng = np.random.default_rng(seed)
    packet = int(table.packet_of[0])
    a, n = int(table.offset[packet]), int(table.size[packet])
    noisy = bytearray(data)
    noisy[a + 40 : a + n] = rng.bytes(n - 40)
    decoder, out = ClipDecoder(), i420_rows(3, (HEIGHT, WIDTH))
    with pytest.raises(MediaError):
        decoder.decode(fmt, table, read_from(bytes(noisy)), [0, 5, 9], out, size=(HEIGHT, WIDTH))
    decoder.decode(fmt, table, read_from(data), [0, 5, 9], out, size=(HEIGHT, WIDTH))
    frames = sequential(path)
    assert np.array_equal(out, np.stack([frames[i] for i in (0, 5, 9)]))


def test_damage_that_a_decoder_would_conceal_is_an_error_too(sample):
    """The end of a P-frame is noise: FFmpeg by default smears over it and says nothing.

    Noise that happens to be a valid bit stream cannot be told; this one is not.
    """
    _, data, table, fmt = sample
    packet = int(np.flatnonzero(~table.disposable & ~table.key)[2])
    a, n = int(table.offset[packet]), int(table.size[packet])
    noisy = bytearray(data)
    noisy[a + n // 3 : a + n] = np.random.default_rng(0).bytes(n - n // 3)
    frame = int(table.frame[packet])
    with pytest.raises(MediaError, match="damaged"):
        ClipDecoder().decode(
            fmt, table, read_from(bytes(noisy)), [frame], i420_rows(1, (64, 96)), size=(64, 96)
        )


@pytest.mark.parametrize("whole_packets", [True, False])
def test_a_truncated_read_is_a_media_error(sample, whole_packets):
    """A source that gives fewer bytes than asked for ends in an error, not in a loop."""
    _, data, table, fmt = sample
    end = int(table.offset[3]) + (0 if whole_packets else 10)  # before or inside the 4th packet

    def too_long(*_):
        raise AssertionError("decode does not come back")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(5)
    try:
        with pytest.raises(MediaError):
            ClipDecoder().decode(
                fmt,
                table,
                lambda a, _: data[a:end],
                [8],
                i420_rows(1, (HEIGHT, WIDTH)),
                size=(HEIGHT, WIDTH),
            )
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((2, frame_bytes((64, 96)) - 1), np.uint8),
        np.zeros((1, frame_bytes((64, 96))), np.uint8),
        np.zeros((2, frame_bytes((64, 96))), np.int8),
        np.zeros((2, 2 * frame_bytes((64, 96))), np.uint8)[:, ::2],
    ],
    ids=["too short", "too few", "another dtype", "not contiguous"],
)
def test_output_rows_that_do_not_fit_are_refused_before_anything_is_read(sample, rows):
    """ValueError, and `read` was never called."""
    _, _, table, fmt = sample
    with pytest.raises(ValueError, match="row"):
        ClipDecoder().decode(fmt, table, pytest.fail, [0, 1], rows, size=(64, 96))


@pytest.mark.parametrize("box", [Box(-2, 0, 32, 32), Box(80, 0, 32, 32), Box(0, 0, 0, 0)])
def test_a_crop_outside_the_picture_is_refused(sample, box):
    """The message holds the crop and the picture."""
    _, _, table, fmt = sample
    with pytest.raises(ValueError, match="96x64"):
        ClipDecoder().decode(
            fmt, table, pytest.fail, [0], i420_rows(1, (32, 32)), size=(32, 32), box=box
        )


def test_a_frame_the_table_lacks_is_an_index_error(sample):
    """Before any byte is read."""
    _, _, table, fmt = sample
    with pytest.raises(IndexError, match="40"):
        ClipDecoder().decode(fmt, table, pytest.fail, [40], i420_rows(1, (64, 96)), size=(64, 96))


def test_another_picture_size_than_promised_is_refused(sample):
    """The stream says 96x64, the pack said 64x64."""
    _, data, table, fmt = sample
    wrong = VideoFormat(fmt.codec, 64, 64, fmt.pix_fmt, fmt.extradata, "bt601", False)
    with pytest.raises(MediaError, match="96x64"):
        ClipDecoder().decode(
            wrong, table, read_from(data), [0], i420_rows(1, (64, 64)), size=(64, 64)
        )


def test_a_picture_that_changes_size_midway_is_refused(tmp_path, film):
    """Annex B streams glued together change size in the middle; the later frames are an error."""
    a = film(tmp_path / "a.h264", frames=5, size=(96, 64), options={"x264-params": "bframes=0"})
    b = film(tmp_path / "b.h264", frames=5, size=(64, 64), options={"x264-params": "bframes=0"})
    data = a.read_bytes() + b.read_bytes()
    starts, order = [], []
    for part, base in ((a, 0), (b, a.stat().st_size)):
        with av.open(str(part)) as file:
            for packet in file.demux(video=0):
                if packet.size:
                    starts.append((base + packet.pos, packet.size, packet.is_keyframe))
        order.append(len(starts))
    table = PacketTable(
        offset=np.array([s[0] for s in starts]),
        size=np.array([s[1] for s in starts]),
        frame=np.arange(len(starts)),
        crc=np.array([zlib.crc32(data[s[0] : s[0] + s[1]]) for s in starts], np.uint32),
        key=np.array([s[2] for s in starts]),
        disposable=np.zeros(len(starts), bool),
    )
    fmt = VideoFormat("h264", 96, 64, "yuv420p", b"", "bt601", False)
    out = i420_rows(1, (64, 96))
    decoder = ClipDecoder()
    with pytest.raises(MediaError, match="64x64"):
        decoder.decode(fmt, table, read_from(data), [order[0] + 1], out, size=(64, 96))
    decoder.decode(fmt, table, read_from(data), [2], out, size=(64, 96))


def test_many_formats_do_not_grow_the_decoder_without_bound(sample):
    """Decoders are kept, but only a few."""
    _, data, table, fmt = sample
    decoder = ClipDecoder()
    for number in range(40):
        other = replace(fmt, extradata=fmt.extradata + bytes([number]))
        with contextlib.suppress(MediaError):
            decoder.decode(
                other, table, read_from(data), [0], i420_rows(1, (16, 16)), size=(16, 16)
            )
    assert len(decoder._decoders) <= 16
