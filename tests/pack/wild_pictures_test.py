"""Pictures as the wild has them: odd, turned, squeezed, deep, full-range, with alpha, in RGB."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest
from wild import (
    Lot,
    annotate,
    check_indexed,
    check_packed,
    index_and_compare,
    make_lot,
    pack_and_compare,
    packed,
    refusal,
    seen,
)

from matinee.pack.reading.reader import Pack
from matinee.pack.writing.index import index_videos

X265 = {"preset": "ultrafast", "x265-params": "keyint=12:log-level=none:pools=none"}
VP9 = {"deadline": "realtime", "cpu-used": "8", "g": "12"}
FULL = {"color_range": 2}
HDR = {"color_primaries": 9, "color_trc": 16, "colorspace": 9, "color_range": 1}
BT709 = {"colorspace": 1, "color_primaries": 1, "color_trc": 1, "color_range": 1}
# name → ending, encoder, pixel format, (width, height), options, attributes of the stream
PICTURES = {
    "odd sides in 4:4:4": ("mp4", "libx264", "yuv444p", (321, 241), {}, {}),
    "odd sides in 4:2:0": ("webm", "libvpx-vp9", "yuv420p", (161, 121), VP9, {}),
    "4:2:2": ("mkv", "libx264", "yuv422p", (96, 64), {}, {}),
    "10 bits": ("mkv", "libx264", "yuv420p10le", (96, 64), {}, {}),
    "10 bits, HEVC": ("mp4", "libx265", "yuv420p10le", (96, 64), X265, {}),
    "12 bits, HEVC 4:4:4": ("mp4", "libx265", "yuv444p12le", (96, 64), X265, {}),
    "full range": ("mp4", "libx264", "yuvj420p", (96, 64), {}, FULL),
    "full range by tag": ("mp4", "libx264", "yuv420p", (96, 64), {}, FULL),
    "full range in 10 bits": ("mkv", "libx264", "yuv420p10le", (96, 64), {}, FULL),
    "BT.709 below 720 lines": ("mp4", "libx264", "yuv420p", (96, 64), {}, BT709),
    "BT.709 by height": ("mp4", "libx264", "yuv420p", (128, 720), {"preset": "ultrafast"}, {}),
    "HDR in BT.2020": ("mp4", "libx265", "yuv420p10le", (96, 64), X265, HDR),
    "grey": ("mp4", "libx264", "gray", (96, 64), {}, {}),
    "grey, FFV1": ("mkv", "ffv1", "gray", (96, 64), {}, {}),
    "RGB in H.264": ("mp4", "libx264rgb", "rgb24", (96, 64), {"qp": "0"}, {}),
    "RGB in FFV1": ("mkv", "ffv1", "bgr0", (96, 64), {}, {}),
    "RGB in Huffyuv": ("avi", "huffyuv", "rgb24", (96, 64), {}, {}),
    "PNG in MOV": ("mov", "png", "rgb24", (96, 64), {}, {}),
    "PNG with alpha in MOV": ("mov", "png", "rgba", (96, 64), {}, {}),
    "QuickTime Animation": ("mov", "qtrle", "rgb24", (96, 64), {}, {}),
    "palette in GIF": ("gif", "gif", "rgb8", (96, 64), {}, {}),
    "ProRes 4444 with alpha": ("mov", "prores_ks", "yuva444p10le", (96, 64), {}, {}),
    "VP9 with alpha": ("webm", "libvpx-vp9", "yuva420p", (96, 64), VP9, {}),
    "Motion JPEG": ("avi", "mjpeg", "yuvj420p", (96, 64), {}, FULL),
    "Motion JPEG 4:2:2": ("mov", "mjpeg", "yuvj422p", (96, 64), {}, FULL),
    "raw video": ("avi", "rawvideo", "yuv420p", (96, 64), {}, {}),
    "raw video in MOV": ("mov", "rawvideo", "yuyv422", (96, 64), {}, {}),
    "MPEG-1": ("mpg", "mpeg1video", "yuv420p", (96, 64), {}, {}),
    "Windows Media": ("wmv", "wmv2", "yuv420p", (96, 64), {}, {}),
    "Theora": ("ogv", "libtheora", "yuv420p", (96, 64), {}, {}),
    "AV1": ("mp4", "libsvtav1", "yuv420p", (96, 64), {"preset": "12"}, {}),
    "H.263": ("3gp", "h263", "yuv420p", (176, 144), {}, {}),
    "two pixels": ("mp4", "libx264", "yuv420p", (2, 2), {}, {}),
    "one pixel": ("mkv", "ffv1", "yuv444p", (1, 1), {}, {}),
    "tall": ("mkv", "ffv1", "yuv420p", (16, 1200), {}, {}),
    "16,384 pixels wide": ("mkv", "mjpeg", "yuvj420p", (16384, 32), {}, FULL),
}


@pytest.fixture(scope="module")
def lot(tmp_path_factory, film) -> Lot:
    """All of them, packed and indexed."""
    folder = tmp_path_factory.mktemp("pictures")
    paths = []
    for name, (ending, codec, pix_fmt, size, options, stream) in PICTURES.items():
        if codec in av.codecs_available:
            content = None if min(size) > 16 else tiny(8, size)
            paths.append(
                film(
                    folder / f"{name.replace('/', ' ')}.{ending}", frames=8, size=size, codec=codec,
                    pix_fmt=pix_fmt, options=options, stream=stream, content=content,
                )
            )  # fmt: skip
    return make_lot(folder, paths)


def tiny(count, size):
    """Pictures smaller than the standard ones can be: grey values that change."""
    for number in range(count):
        yield np.full((size[1], size[0], 3), 20 + 20 * number, np.uint8)


@pytest.mark.parametrize("name", PICTURES)
def test_any_picture_comes_as_it_is_shown(name, lot):
    """Colours, range, depth, sides: packed as PyAV shows them; indexed so, or refused."""
    file = f"{name}.{PICTURES[name][0]}"
    if file not in lot.paths:
        pytest.skip(f"this PyAV has no {PICTURES[name][1]}")
    assert lot.check(file).num_frames == 8
    lot.check_index(file)


def test_pixels_that_are_not_square_become_so(tmp_path, film):
    """A 4:3 DVD is stored as 720 wide pixels; nothing is squeezed."""
    aspects = (Fraction(64, 45), Fraction(8, 9), Fraction(2, 1))
    paths = [film(tmp_path / "sound.mp4", frames=2)]
    for number, aspect in enumerate(aspects):
        for ending in ("mp4", "mkv"):
            path = tmp_path / f"{number}.{ending}"
            film(path, frames=6, size=(128, 96), stream={"sample_aspect_ratio": aspect})
            paths.append(path)
    lot = make_lot(tmp_path, paths)
    for path in paths[1:]:
        info = lot.check(path.name)
        assert abs(info.width / info.height - 128 / 96 * aspects[int(path.stem)]) < 0.04
        assert "square" in lot.check_index(path.name)


ONE = 1 << 16
# name → a, b, c, d of the display matrix: shown x = a·x + c·y, y = b·x + d·y
TURNS = {
    "90": (0, ONE, -ONE, 0),
    "180": (-ONE, 0, 0, -ONE),
    "270": (0, -ONE, ONE, 0),
    "mirrored": (-ONE, 0, 0, ONE),
    "upside down": (ONE, 0, 0, -ONE),
    "transposed": (0, ONE, ONE, 0),
    "transposed the other way": (0, -ONE, -ONE, 0),
}


def turned(path, film, matrix):
    """A film whose display matrix is set: in the header's bytes, or by the muxer."""
    if path.suffix == ".mkv":
        source = film(path.with_suffix(".source.mkv"), frames=6)
        with av.open(str(source)) as original, av.open(str(path), "w") as file:
            stream = file.add_stream_from_template(original.streams.video[0])
            stream.set_display_matrix(matrix.tolist())
            for packet in original.demux(video=0):
                if packet.size:
                    packet.stream = stream
                    file.mux(packet)
        return path
    film(path, frames=6)
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 44
    data[at : at + 36] = matrix.astype(">i4").tobytes()
    path.write_bytes(data)
    return path


def test_turned_and_mirrored_videos_are_packed_upright(tmp_path, film):
    """As the display matrix says, applied pixel by pixel."""
    paths = [film(tmp_path / "sound.mp4", frames=2)]
    for name, (a, b, c, d) in TURNS.items():
        for ending in ("mp4", "mov", "mkv"):
            matrix = np.array([a, b, 0, c, d, 0, 0, 0, 1 << 30], np.int32)
            path = turned(tmp_path / f"{name}.{ending}", film, matrix)
            with av.open(str(path)) as file:
                if next(file.decode(video=0)).side_data.get("DISPLAYMATRIX") is not None:
                    paths.append(path)  # Matroska keeps no mirrored ones
    assert len(paths) >= 1 + 2 * len(TURNS) + 3
    lot = make_lot(tmp_path, paths)
    for path in paths[1:]:
        info = lot.check(path.name)
        assert (info.width, info.height) == ((96, 64) if TURNS[path.stem][0] else (64, 96))
        assert "upright" in lot.check_index(path.name)


def test_an_empty_display_matrix_turns_nothing(tmp_path, film):
    """Some writers leave it zero; every player shows such a video as it is stored."""
    path = film(tmp_path / "a.mp4", frames=6)
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 44
    data[at : at + 36] = bytes(36)
    path.write_bytes(data)
    assert pack_and_compare(path, tmp_path / "pack").info(0).width == 96


@pytest.mark.parametrize("field", ["tff", "bff"])
@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
def test_interlaced_videos_are_deinterlaced_frame_for_frame(field, codec, tmp_path, film):
    """As many frames, in their order; combing would differ from the picture by more."""
    options = {
        "libx264": {"preset": "veryfast", "x264-params": f"{field}=1"},
        "mpeg2video": {"flags": "+ildct+ilme", "top": str(int(field == "tff")), "bf": "2"},
    }[codec]
    path = film(
        tmp_path / "a.mkv", frames=12, codec=codec, options=options, stream={"bit_rate": 4_000_000}
    )
    with av.open(str(path)) as file:
        if not next(file.decode(video=0)).interlaced_frame:
            pytest.skip(f"this {codec} marks no frame as interlaced")
    pack = packed(tmp_path / "pack", path)
    assert pack.info(0).num_frames == 12
    check_packed(pack, 0, path, luma=20)
    assert "deinterlaced" in index_and_compare(path, tmp_path / "index")


def test_one_frame_is_a_video(tmp_path, film):
    """Packed and indexed."""
    path = film(tmp_path / "a.mp4", frames=1)
    assert pack_and_compare(path, tmp_path / "pack").info(0).num_frames == 1
    assert not index_and_compare(path, tmp_path / "index")


def test_a_picture_beyond_what_can_be_encoded_is_refused(tmp_path, film):
    """Shrinking 8 × 16,384 to an even, square-pixel picture leaves it out of all proportion."""
    path = film(
        tmp_path / "a.mkv", frames=2, size=(64, 16384), codec="mjpeg", pix_fmt="yuvj420p",
        options={}, stream={**FULL, "sample_aspect_ratio": Fraction(1, 50)},
        content=[np.full((16384, 64, 3), n, np.uint8) for n in (10, 200)],
    )  # fmt: skip
    assert "picture" in refusal(path, tmp_path / "pack")


def test_an_indexed_full_range_film_keeps_its_range(tmp_path, film):
    """What a device transform is told about the pixels is what they are."""
    path = film(
        tmp_path / "a.mp4", frames=6, pix_fmt="yuvj420p", stream=FULL,
        content=[np.full((64, 96, 3), value, np.uint8) for value in (0, 50, 100, 150, 200, 255)],
    )  # fmt: skip
    index_videos(tmp_path / "index", annotate(path))
    pack = Pack(tmp_path / "index")
    assert pack.formats[0].full_range
    check_indexed(pack, 0, path)
    white = seen(path, (64, 96), full=True).frames[-1]
    assert white[: 64 * 96].min() > 250
