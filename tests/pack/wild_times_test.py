"""Frame times as the wild has them: missing, uneven, shifted, wrapped, without a duration."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np
import pytest
from wild import index_and_compare, pack_and_compare, packed, psnr, refusal, seen
from wild_files import copy

from matinee.media.probe import probe

H264 = {"preset": "veryfast", "g": "12", "bf": "2"}


def test_an_avi_without_presentation_times_is_packed_in_order(tmp_path, film):
    """H.264 with B-frames in AVI: packets have no times but the order in which they are stored."""
    path = film(tmp_path / "a.avi", frames=30, options=H264)
    with av.open(str(path)) as file:
        times = [packet.pts for packet in file.demux(video=0) if packet.size]
        assert file.streams.video[0].codec_context.has_b_frames
    assert None in times or times == sorted(times), "the test file has times of presentation"
    assert pack_and_compare(path, tmp_path / "pack").info(0).num_frames == 30
    assert "AVI" in index_and_compare(path, tmp_path / "index").upper()


def test_raw_streams_without_any_times_are_packed_in_order(tmp_path, film):
    """No container: 25 frames a second is FFmpeg's assumption, order and number are sure."""
    whole = film(tmp_path / "a.mkv", frames=30, options=H264)
    raw = tmp_path / "a.h264"
    with av.open(str(whole)) as file, raw.open("wb") as out:
        bsf = av.BitStreamFilterContext("h264_mp4toannexb", file.streams.video[0])
        for packet in file.demux(video=0):
            for unit in bsf.filter(packet if packet.size else None):
                out.write(bytes(unit))
    assert pack_and_compare(raw, tmp_path / "pack").info(0).num_frames == 30
    assert "pack it" in index_and_compare(raw, tmp_path / "index")


@pytest.mark.parametrize("ending", ["mp4", "mkv", "ts", "flv"])
def test_irregularly_dropped_frames_leave_the_others_at_their_times(tmp_path, film, ending):
    """A third of the frames is gone; each that is left is held until the next one."""
    rng = np.random.default_rng(1)
    kept = np.sort(rng.choice(60, 40, replace=False))
    kept[0] = 0
    whole = film(tmp_path / "whole.mkv", frames=60, options={"preset": "veryfast"})
    pictures = []
    with av.open(str(whole)) as file:
        pictures = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    # Matroska rounds to milliseconds, MPEG-TS to 90 kHz; the frame rate survives both.
    path = film(
        tmp_path / f"a.{ending}", content=[pictures[n] for n in kept], times=kept.tolist(),
        time_base=Fraction(1, 25), options=H264,
    )  # fmt: skip
    pack = pack_and_compare(path, tmp_path / "pack")
    assert pack.info(0).fps == 25
    assert pack.info(0).num_frames in (kept[-1], kept[-1] + 1, kept[-1] + 2)
    assert "evenly" in index_and_compare(path, tmp_path / "index") or ending == "ts"


@pytest.mark.parametrize("rate", [Fraction(30000, 1001), Fraction(24000, 1001), Fraction(30), 50])
@pytest.mark.parametrize("frames", [3, 10, 60])
@pytest.mark.parametrize("ending", ["mkv", "mp4", "ts", "flv"])
def test_the_rate_is_what_was_encoded_whatever_the_container_rounds_to(
    rate, frames, ending, tmp_path, film
):
    """Milliseconds of Matroska and FLV, ticks of MP4: 29.97 stays 30000/1001."""
    if ending == "ts" and frames == 3:
        pytest.skip("FFmpeg recognises no MPEG-TS of a few hundred bytes")
    path = film(
        tmp_path / f"a.{ending}", frames=frames, size=(32, 32), fps=rate,
        options={"preset": "ultrafast"},
    )  # fmt: skip
    found = probe(path)
    assert found.constant and found.packets == frames
    if frames == 60 or ending in ("mp4", "ts"):
        assert found.fps == rate
    else:  # three frames at whole milliseconds cannot tell 29.97 from 30
        assert abs(found.fps - rate) * 1000 <= rate


def test_a_long_video_is_not_drawn_to_a_rate_that_is_nearly_its_own(tmp_path, film):
    """29.98 a second for 200 seconds is 4 frames off 30; none may come half a frame late."""
    path = film(
        tmp_path / "a.mp4", content=[np.zeros((16, 16, 3), np.uint8)] * 6000, size=(16, 16),
        fps=Fraction(1499, 50), options={"preset": "ultrafast", "crf": "51"},
    )  # fmt: skip
    found = probe(path)
    assert found.constant
    assert abs(5999 / float(found.fps) - 5999 / 29.98) < 0.5 / 29.98


@pytest.mark.parametrize("ending", ["mp4", "mkv", "ts"])
@pytest.mark.parametrize("shift", [10.0, 3600.04, -0.2])
def test_a_start_other_than_zero_moves_no_frame(ending, shift, tmp_path, film):
    """`-itsoffset`: the first frame is the first, whatever its time."""
    whole = film(tmp_path / "whole.mkv", frames=30, options=H264)
    path = copy(
        whole, tmp_path / f"a.{ending}", shift=shift, container={"avoid_negative_ts": "disabled"}
    )
    with av.open(str(path)) as file:
        shown = sum(1 for _ in file.decode(video=0))
    pack = pack_and_compare(path, tmp_path / "pack")
    assert pack.info(0).num_frames == shown >= 24
    # Matroska has no negative times: packets lose theirs.
    reason = index_and_compare(path, tmp_path / "index")
    assert not reason if ending == "mp4" or (shift > 0 and ending == "mkv") else "pack it" in reason


def test_a_transport_stream_whose_clock_wraps_keeps_its_order(tmp_path, film):
    """33 bits of 90 kHz are 26.5 hours; the count begins again at 0 in the middle of the film."""
    whole = film(tmp_path / "whole.mkv", frames=40, options=H264)
    ending = 2**33 / 90000
    path = copy(whole, tmp_path / "a.ts", shift=ending - 0.6, container={"mpegts_copyts": "1"})
    times = []
    raw = path.read_bytes()
    for at in range(0, len(raw), 188):  # the PES headers' own times
        place = raw.find(b"\0\0\1\xe0", at, at + 188)
        if place >= 0 and raw[place + 7] & 0x80:
            b = raw[place + 9 : place + 14]
            times.append(
                (b[0] >> 1 & 7) << 30 | b[1] << 22 | (b[2] >> 1) << 15 | b[3] << 7 | b[4] >> 1
            )
    assert max(times) > 2**33 - 90000 and min(times) < 90000 * 3, "the test file does not wrap"
    assert pack_and_compare(path, tmp_path / "pack").info(0).num_frames == 40


@pytest.mark.parametrize("kind", ["live mkv", "live webm", "fragmented mp4", "live flv"])
def test_a_file_without_duration_or_frame_count_is_read_whole(kind, tmp_path, film):
    """Written to a pipe, so that nothing could be filled in at the end."""
    live, ending = kind.split()
    codec = "libvpx-vp9" if ending == "webm" else "libx264"
    options = {"deadline": "realtime", "cpu-used": "8", "g": "12"} if ending == "webm" else H264
    container = {"movflags": "frag_keyframe+empty_moov"} if live == "fragmented" else {}
    if ending in ("mkv", "webm"):
        container = {"live": "1"}
    whole = film(tmp_path / "whole.mkv", frames=30, codec=codec, options=options)
    path = tmp_path / f"a.{ending}"

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data) -> int:
            self.data += data
            return len(data)

    pipe = Pipe()
    names = {"mkv": "matroska", "webm": "webm", "mp4": "mp4", "flv": "flv"}
    with (
        av.open(str(whole)) as original,
        av.open(pipe, "w", format=names[ending], options=container) as file,
    ):
        stream = file.add_stream_from_template(original.streams.video[0])
        for packet in original.demux(video=0):
            if packet.size:
                packet.stream = stream
                file.mux(packet)
    path.write_bytes(pipe.data)
    with av.open(str(path)) as file:
        assert not file.streams.video[0].frames
    assert pack_and_compare(path, tmp_path / "pack").info(0).num_frames == 30
    assert not index_and_compare(path, tmp_path / "index")


def test_b_frames_without_decoding_times_are_shown_in_order(tmp_path, film):
    """Matroska stores no DTS."""
    path = film(tmp_path / "a.mkv", frames=30, options=H264)
    assert pack_and_compare(path, tmp_path / "pack").info(0).num_frames == 30
    assert not index_and_compare(path, tmp_path / "index")


@pytest.mark.parametrize("base", [Fraction(1, 1000), Fraction(1, 12345), Fraction(1, 90000)])
def test_unusual_time_bases_move_no_frame(base, tmp_path, film):
    """Frames at 23.976 a second, rounded to the base."""
    rate = Fraction(24000, 1001)
    path = film(
        tmp_path / "a.mov", frames=40, fps=rate, time_base=base,
        times=[round(n / rate / base) for n in range(40)], options=H264,
    )  # fmt: skip
    pack = pack_and_compare(path, tmp_path / "pack")
    assert pack.info(0).num_frames == 40
    assert abs(pack.info(0).fps - rate) * 1000 <= rate
    assert not index_and_compare(path, tmp_path / "index")


def test_one_frame_has_a_customary_rate(tmp_path, film):
    """It has no distance to another; 1000 a second is what a header is guessed to say."""
    path = film(tmp_path / "a.mkv", frames=1, options=H264)
    pack = pack_and_compare(path, tmp_path / "pack")
    assert pack.info(0).num_frames == 1 and pack.info(0).fps <= 240
    assert not index_and_compare(path, tmp_path / "index")


def test_frames_of_milliseconds_beside_seconds_of_sound_are_refused(tmp_path, film):
    """Times of another unit: 30 frames within 50 ms, and 1.2 s of sound."""
    whole = film(tmp_path / "whole.mkv", frames=30, options={"bf": "0"})
    path = tmp_path / "a.mkv"
    with av.open(str(whole)) as original, av.open(str(path), "w") as file:
        stream = file.add_stream_from_template(original.streams.video[0])
        sound = file.add_stream("pcm_s16le", rate=8000, layout="mono")
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 9600), np.int16), layout="mono")
        silence.sample_rate = 8000
        file.mux(sound.encode(silence))
        for number, packet in enumerate(original.demux(video=0)):
            if packet.size:
                packet.pts = packet.dts = round(number * 1000 / 600)
                packet.time_base, packet.stream = Fraction(1, 1000), stream
                file.mux(packet)
    assert "frames a second" in refusal(path, tmp_path / "pack")


def test_a_gap_of_hours_is_refused_and_one_of_a_second_is_held(tmp_path, film):
    """A pause is filled by its frame; hours would be a pack of copies."""
    times = [*range(10), *range(35, 45)]
    short = film(tmp_path / "short.mp4", frames=20, times=times, options={"bf": "0"})
    pack = pack_and_compare(short, tmp_path / "pack")
    assert pack.info(0).num_frames in (44, 45, 46)
    clip = pack.read(0, [9, 20, 34], pixels="i420")
    assert min(psnr(clip[0], clip[1]), psnr(clip[0], clip[2])) > 45
    long = film(
        tmp_path / "long.mp4", frames=20, times=[*range(10), *range(250_000, 250_010)],
        options={"bf": "0"},
    )  # fmt: skip
    assert "gap" in refusal(long, tmp_path / "pack2")


def test_frames_that_carry_the_same_time_are_refused_or_packed_in_order(tmp_path, film):
    """Two packets at one time: no order can be told when indexing."""
    whole = film(tmp_path / "whole.mkv", frames=20, options={"bf": "0", "g": "5"})

    def same(number, packet):
        if number == 7:
            packet.pts = packet.dts = packet.pts - 40

    path = copy(whole, tmp_path / "a.mkv", change=same)
    frames = seen(whole, (64, 96)).frames
    pack = packed(tmp_path / "pack", path)
    clip = pack.read(0, range(pack.info(0).num_frames), pixels="i420")
    best = [int(np.argmax([psnr(picture, frame) for frame in frames])) for picture in clip]
    assert best == sorted(best) and set(best) >= set(range(20)) - {6, 7}
    assert index_and_compare(path, tmp_path / "index")
