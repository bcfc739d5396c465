"""What is no sound video is refused with its reason, and nothing but MediaError comes out."""

from __future__ import annotations

import struct
import wave
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from matinee.errors import MediaError
from matinee.media.normalise import normalised_frames, target_size
from matinee.media.packets import scan_packets
from matinee.media.probe import orientation_of, probe


def read_whole(path: Path) -> int:
    """Probe and decode everything, as packing does; the number of frames."""
    source = probe(path)
    return sum(1 for _ in normalised_frames(path, source, target_size(source, 288)))


def write_wav(path: Path) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(16000))
    return path


def write_audio(path: Path, codec: str, cover: bytes | None = None) -> Path:
    """One second of silence; `cover` is a JPEG put in as attached picture."""
    with av.open(str(path), "w") as file:
        audio = file.add_stream(codec, rate=44100)
        if cover:
            picture = file.add_stream("mjpeg", rate=1)
            picture.width, picture.height, picture.pix_fmt = 64, 48, "yuvj420p"
            picture.disposition = av.stream.Disposition.attached_pic
        samples = np.zeros((1, 44100), np.float32)
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
        frame.sample_rate = 44100
        resampler = av.AudioResampler(audio.format, "mono", 44100, audio.frame_size or 1024)
        if cover:
            packet = av.Packet(cover)
            packet.stream, packet.pts, packet.dts = picture, 0, 0
            packet.time_base, packet.is_keyframe = Fraction(1, 1), True
            file.mux(packet)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            file.mux(audio.encode(part))
        file.mux(audio.encode(None))
    return path


def image(path: Path, codec: str, pix_fmt: str) -> Path:
    frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 90, np.uint8), format="rgb24")
    encoder = av.CodecContext.create(codec, "w")
    encoder.width, encoder.height, encoder.pix_fmt = 64, 48, pix_fmt
    encoder.time_base = Fraction(1, 25)
    frame = frame.reformat(format=pix_fmt)
    data = b"".join(bytes(p) for p in [*encoder.encode(frame), *encoder.encode(None)])
    path.write_bytes(data)
    return path


def test_an_ordinary_film_is_described_as_encoded(tmp_path, film):
    """Size, rate, count, duration, matrix by height."""
    path = film(tmp_path / "a.mp4", frames=50, size=(96, 64), fps=Fraction(30000, 1001))
    found = probe(path)
    assert (found.width, found.height, found.packets) == (96, 64, 50)
    assert found.fps == Fraction(30000, 1001)
    assert found.duration == pytest.approx(50 * 1001 / 30000, abs=1e-6)
    assert found.constant and not found.interlaced and not found.full_range
    assert found.matrix == "bt601"
    assert found.pixel_aspect == 1 and not found.orientation.filters


def test_an_empty_file_is_refused(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(b"")
    with pytest.raises(MediaError, match="0 bytes"):
        probe(path)


def test_a_missing_file_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        probe(tmp_path / "none.mp4")


@pytest.mark.parametrize("content", ["Take 3 was the best.\n" * 40, "\0" * 5000, "x"])
def test_text_named_mp4_is_refused(tmp_path, content):
    """Not video by its content, whatever the name says."""
    path = tmp_path / "notes.mp4"
    path.write_text(content)
    with pytest.raises(MediaError):
        read_whole(path)


@pytest.mark.parametrize(("codec", "pix_fmt"), [("png", "rgb24"), ("mjpeg", "yuvj420p")])
def test_a_still_image_named_mp4_is_refused(tmp_path, codec, pix_fmt):
    """A picture is no film of one frame here."""
    with pytest.raises(MediaError, match="image"):
        probe(image(tmp_path / "a.mp4", codec, pix_fmt))


def test_sound_without_picture_is_refused(tmp_path):
    with pytest.raises(MediaError, match="no video stream"):
        probe(write_wav(tmp_path / "a.wav"))
    with pytest.raises(MediaError, match="no video stream"):
        probe(write_audio(tmp_path / "a.m4a", "aac"))


def test_cover_art_is_no_moving_picture(tmp_path):
    """A song with its cover holds a video stream only by name."""
    cover = image(tmp_path / "cover.jpg", "mjpeg", "yuvj420p").read_bytes()
    path = write_audio(tmp_path / "song.mp3", "libmp3lame", cover)
    with av.open(str(path)) as file:
        assert len(file.streams.video) == 1, "the test file has no cover art"
    with pytest.raises(MediaError, match="cover art"):
        probe(path)
    with pytest.raises(MediaError, match="cover art"):
        scan_packets(path)


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9, 0.995])
def test_a_truncated_film_is_refused(tmp_path, film, keep):
    """With the index at the front the header still promises every frame."""
    path = film(tmp_path / "a.mp4", frames=60, container={"movflags": "faststart"})
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(MediaError, match="truncated" if keep > 0.5 else None):
        read_whole(path)


@pytest.mark.parametrize("ending", ["mp4", "mkv", "webm", "avi", "ts", "flv"])
@pytest.mark.parametrize("keep", [0.0, 0.001, 0.02, 0.3])
def test_a_film_cut_anywhere_gives_frames_or_a_media_error(tmp_path, film, ending, keep):
    """Containers without an index may give the frames that are there; none may crash."""
    codec = "libvpx-vp9" if ending == "webm" else "libx264"
    options = {"cpu-used": "8", "deadline": "realtime"} if ending == "webm" else None
    path = film(tmp_path / f"a.{ending}", frames=20, codec=codec, options=options)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    try:
        assert 0 < read_whole(path) < 20
    except MediaError as error:
        assert str(error)


def test_a_film_without_its_index_is_refused(tmp_path, film):
    """moov at the end, and the end cut off."""
    path = film(tmp_path / "a.mp4", frames=60)
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"moov") - 4])
    with pytest.raises(MediaError):
        probe(path)


@pytest.mark.parametrize("codec", ["libx264", "mpeg4", "libx265"])
def test_noise_in_a_packet_is_refused(tmp_path, film, codec):
    """The decoder's error is reported with the place, never shown as a smeared picture."""
    options = {"libx265": {"preset": "ultrafast", "x265-params": "log-level=none:pools=none"}}
    path = film(tmp_path / "a.mp4", frames=30, codec=codec, options=options.get(codec))
    table, data = scan_packets(path).table, bytearray(path.read_bytes())
    packet = int(table.packet_of[12])
    a, n = int(table.offset[packet]), int(table.size[packet])
    data[a + 6 : a + n] = np.random.default_rng(3).bytes(n - 6)
    path.write_bytes(data)
    with pytest.raises(MediaError, match="damaged"):
        read_whole(path)


def test_any_mutated_film_is_read_or_refused(tmp_path, film):
    """Sixty files with random bytes changed: frames or MediaError."""
    path = film(tmp_path / "a.mp4", frames=12, size=(48, 32))
    good, rng = path.read_bytes(), np.random.default_rng(0)
    moov = good.index(b"moov")
    for number in range(60):
        data = bytearray(good)
        low = moov if number % 2 else 0
        for place in rng.integers(low, len(data), 1 + number % 5):
            data[place] = rng.integers(0, 256)
        path.write_bytes(data)
        try:
            read_whole(path)
            scan_packets(path)
        except MediaError:
            continue


def test_a_display_matrix_of_an_odd_angle_is_refused():
    """45 degrees cannot be undone by quarter turns; 20 bytes are no matrix."""
    one, turn = 1 << 16, int((1 << 16) * 0.7071)
    skewed = np.array([turn, turn, 0, -turn, turn, 0, 0, 0, 1 << 30], np.int32).tobytes()
    with pytest.raises(MediaError, match="quarter turn"):
        orientation_of(skewed)
    with pytest.raises(MediaError, match="damaged"):
        orientation_of(skewed[:20])
    upright = np.array([one, 0, 0, 0, one, 0, 0, 0, 1 << 30], np.int32).tobytes()
    assert orientation_of(upright).filters == ()


def test_a_transport_stream_cannot_be_indexed_but_is_packed(tmp_path, film):
    """Its packets are split into cells of 188 bytes, so no byte range holds one."""
    path = film(tmp_path / "a.ts", frames=20, options={"g": "5"})
    with pytest.raises(MediaError, match="pack it"):
        scan_packets(path)
    assert read_whole(path) == 20


def test_a_stream_of_an_unknown_codec_is_refused(tmp_path, film):
    """The sample entry's name is changed, so FFmpeg has no decoder for the stream."""
    path = film(tmp_path / "a.mp4", frames=5)
    path.write_bytes(path.read_bytes().replace(b"avc1", b"zzzz").replace(b"avcC", b"zzzC"))
    with pytest.raises(MediaError):
        probe(path)
    with pytest.raises(MediaError):
        scan_packets(path)


def patched(path: Path, box: bytes, at: int, *numbers: int) -> Path:
    """Overwrite big-endian numbers of a box, `at` bytes behind its name."""
    data = bytearray(path.read_bytes())
    struct.pack_into(f">{len(numbers)}I", data, data.index(box) + 4 + at, *numbers)
    path.write_bytes(data)
    return path


def test_a_header_that_claims_more_samples_than_fit_is_refused_at_once(tmp_path, film):
    """2³¹ samples of one byte in a file of three kilobytes: FFmpeg would allocate gigabytes."""
    path = patched(film(tmp_path / "a.mp4", frames=12), b"stsz", 4, 1, 1 << 31)
    with pytest.raises(MediaError, match="claims 2147483648 samples"):
        probe(path)
    many = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
    path = film(tmp_path / "b.mp4", frames=12, container=many)
    with pytest.raises(MediaError, match="claims 100000000 samples"):
        probe(patched(path, b"trun", 0, 1, 100_000_000))


def test_edits_that_show_a_track_over_and_over_are_refused(tmp_path):
    """2,000 edits of 100,000 samples each would be 200 million frames."""

    def box(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I4s", 8 + len(body), kind) + body

    sizes = struct.pack(">III", 0, 0, 100_000) + bytes(400_000)
    edits = struct.pack(">II", 0, 2000) + bytes(24_000)
    table = box(b"mdia", box(b"minf", box(b"stbl", box(b"stsz", sizes))))
    track = box(b"trak", box(b"edts", box(b"elst", edits)) + table)
    path = tmp_path / "a.mp4"
    path.write_bytes(box(b"ftyp", b"isom") + box(b"moov", track))
    with pytest.raises(MediaError, match="claims 200000000 samples"):
        probe(path)


def test_uncompressed_sound_that_was_cut_is_no_claim(tmp_path):
    """Three edits of 140 s at 48 kHz are 20 million samples of sound, but few entries."""
    path = tmp_path / "a.mov"
    with av.open(str(path), "w") as file:
        video = file.add_stream("mpeg4", rate=25)
        video.width, video.height, video.pix_fmt = 32, 32, "yuv420p"
        sound = file.add_stream("pcm_u8", rate=48_000, layout="mono")
        for _ in range(4):
            file.mux(video.encode(av.VideoFrame(32, 32, "yuv420p")))
        file.mux(video.encode(None))
        for _ in range(140):
            second = av.AudioFrame.from_ndarray(
                np.zeros((1, 48_000), np.uint8), format="u8", layout="mono"
            )
            second.rate = 48_000
            file.mux(sound.encode(second))
    data = path.read_bytes()
    at = data.rindex(b"elst") - 4
    (size,) = struct.unpack_from(">I", data, at)
    edit = struct.pack(">Iii", 1000, 0, 1 << 16)
    new = struct.pack(">I4sII", 16 + 36, b"elst", 0, 3) + 3 * edit
    grown = bytearray(data[:at] + new + data[at + size :])
    for parent in (b"edts", b"trak", b"moov"):
        place = grown.rindex(parent, 0, at) - 4
        (old,) = struct.unpack_from(">I", grown, place)
        struct.pack_into(">I", grown, place, old + len(new) - size)
    path.write_bytes(grown)
    assert grown.rindex(b"soun") > grown.rindex(b"vide") and grown.rindex(b"elst") - 4 == at
    assert probe(path).width == 32
    with av.open(str(path)) as file:
        assert file.streams.audio[0].duration is not None
    # The same claim of samples that last longer than a tick would fill an index.
    at = grown.rindex(b"stts") + 12
    assert struct.unpack_from(">II", grown, at) == (140 * 48_000, 1)
    struct.pack_into(">I", grown, at + 4, 2)
    path.write_bytes(grown)
    with pytest.raises(MediaError, match="claims 20160000 samples"):
        probe(path)


@pytest.mark.parametrize("size", [0, 1, 7, 2**31, 2**32 - 1])
def test_boxes_of_any_size_are_looked_at_in_bounded_time(size, tmp_path, film):
    """A box that ends before it begins, or beyond its parent and the file."""
    for name in (b"moov", b"trak", b"mdia", b"stbl", b"stsz"):
        path = film(tmp_path / "a.mp4", frames=5)
        try:
            probe(patched(path, name, -8, size))
        except MediaError as error:
            assert str(error)


def test_the_rate_is_not_drawn_to_one_that_moves_frames(tmp_path, film):
    """24.5 frames a second are not 24 or 25, and 29.98 is not 30 for long."""
    for rate, frames in ((Fraction(49, 2), 40), (Fraction(1499, 50), 900)):
        path = film(
            tmp_path / "a.mp4", frames=frames, size=(16, 16), fps=rate,
            content=[np.zeros((16, 16, 3), np.uint8)] * frames, options={"preset": "ultrafast"},
        )  # fmt: skip
        found = probe(path).fps
        assert abs((frames - 1) / found - (frames - 1) / rate) * rate < Fraction(1, 5)
