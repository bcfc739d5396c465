"""Segments decoded apart give the frames that decoding from the beginning gives."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from matinee.errors import MediaError
from matinee.media import segments
from matinee.media.normalise import normalised_frames, slot_of, spaced_frames, target_size
from matinee.media.packets import scan_packets
from matinee.media.probe import probe
from matinee.media.segments import StoredPackets, cut_segments, read_packets, segment_frames


def checks(frames) -> list[int]:
    return [zlib.crc32(f.to_ndarray(format="yuv420p").tobytes()) for f in frames]


def apart(path, source, *, frames_per_chunk: int, chunks: int, order=None) -> list[int]:
    """All frames, each segment decoded by itself, the last segment first."""
    size = target_size(source, 288)
    cut = cut_segments(
        read_packets(path, source), source, frames_per_chunk=frames_per_chunk, chunks=chunks
    )
    found = [checks(segment_frames(path, source, size, segment)) for segment in cut[::-1]][::-1]
    assert [len(part) for part in found] == [segment.frames for segment in cut]
    assert all(segment.start % frames_per_chunk == 0 for segment in cut)
    return [check for part in found for check in part]


def at_once(path, source) -> list[int]:
    return checks(normalised_frames(path, source, target_size(source, 288)))


X265 = "keyint=24:scenecut=0:log-level=error"
CODECS = {
    "default": ("libx264", "mp4", {"preset": "veryfast", "g": "24"}),
    "scene cuts": ("libx264", "mkv", {"preset": "veryfast", "g": "60", "sc_threshold": "40"}),
    "open gop": ("libx264", "mp4", {"preset": "veryfast", "x264-params": "open-gop=1:keyint=24"}),
    "pyramid": ("libx264", "mp4", {"x264-params": "keyint=20:bframes=6:b-pyramid=normal:ref=5"}),
    "intra refresh": ("libx264", "mp4", {"x264-params": "intra-refresh=1:keyint=24:scenecut=0"}),
    "transport stream": ("libx264", "ts", {"preset": "veryfast", "g": "24"}),
    "flv": ("libx264", "flv", {"preset": "veryfast", "g": "24"}),
    "hevc": ("libx265", "mp4", {"preset": "ultrafast", "x265-params": f"open-gop=0:{X265}"}),
    "hevc open": ("libx265", "mkv", {"preset": "ultrafast", "x265-params": f"open-gop=1:{X265}"}),
    "av1": ("libsvtav1", "mp4", {"preset": "12", "g": "24"}),
    "mjpeg": ("mjpeg", "mkv", {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", CODECS)
def test_segments_of_each_codec_equal_one_pass(tmp_path, film, kind):
    """Or the file is refused with the reason, where no key can be started from."""
    codec, ending, options = CODECS[kind]
    pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    path = film(tmp_path / f"a.{ending}", frames=150, codec=codec, options=options, pix_fmt=pix_fmt)
    source = probe(path)
    expected = at_once(path, source)
    assert len(expected) == 150 == len(set(expected))
    if kind in ("open gop", "intra refresh", "hevc open"):
        with pytest.raises(MediaError, match="too few keyframes"):
            apart(path, source, frames_per_chunk=10, chunks=2)
        return
    assert apart(path, source, frames_per_chunk=10, chunks=2) == expected


@pytest.mark.parametrize("seed", range(6))
def test_random_groups_of_pictures_and_times_equal_one_pass(tmp_path, film, seed):
    """x264 with random key distances and references; even times, dropped frames, pauses."""
    rng = random.Random(seed)
    count = rng.randrange(60, 140)
    gop, b_frames = rng.choice([1, 5, 13, 40]), rng.randrange(4)
    times = None
    if seed % 2:
        times, at = [], rng.randrange(-2000, 5000)
        for _ in range(count):
            times.append(at)
            at += rng.choice([40, 40, 40, 40, 7, 20, 45, 60, 130, 900])
    path = film(
        tmp_path / f"a.{rng.choice(['mp4', 'mkv'])}", frames=count, times=times,
        time_base=Fraction(1, 1000) if times else None, seed=seed,
        options={"preset": "veryfast", "g": str(gop), "bf": str(b_frames)},
    )  # fmt: skip
    source = probe(path)
    assert source.constant is (times is None)
    expected = at_once(path, source)
    compared = 0
    for frames_per_chunk, chunks in ((3, 1), (7, 2), (10, 1), (25, 1)):
        try:
            found = apart(path, source, frames_per_chunk=frames_per_chunk, chunks=chunks)
        except MediaError as error:
            assert gop == 40 and "too few keyframes" in str(error)
            continue
        assert found == expected
        compared += 1
    assert compared


def by_filter(times, base, fps, last_duration) -> list[int]:
    """Which frame FFmpeg's fps filter shows in each slot."""
    graph = av.filter.Graph()
    chain = [
        graph.add("buffer", f"video_size=16x16:pix_fmt=gray:time_base={base}:pixel_aspect=1/1"),
        graph.add("fps", f"fps={fps}:round=near"),
        graph.add("buffersink"),
    ]
    chain[0].link_to(chain[1])
    chain[1].link_to(chain[2])
    graph.configure()
    shown: list[int] = []
    for number, time in enumerate([*times, None]):
        frame = None
        if time is not None:
            frame = av.VideoFrame.from_ndarray(np.full((16, 16), number, np.uint8), format="gray")
            frame.pts, frame.time_base = time, base
            if number == len(times) - 1:
                frame.duration = last_duration
        graph.push(frame)
        while True:
            try:
                shown.append(int(graph.pull().to_ndarray()[0, 0]))
            except (av.BlockingIOError, av.EOFError):
                break
    return shown


@examples(max_examples=60)
@given(
    start=st.integers(-5000, 5000),
    steps=st.lists(st.integers(1, 300), max_size=40),
    base=st.sampled_from(
        [Fraction(1, 1000), Fraction(1, 90000), Fraction(1, 600), Fraction(1, 25)]
    ),
    fps=st.sampled_from([Fraction(25), Fraction(30000, 1001), Fraction(7, 3), Fraction(240)]),
)
def test_uneven_times_are_spaced_as_by_the_fps_filter(start, steps, base, fps):
    """Slot for slot, over random times and units; the last frame lasts two slots."""
    times = [start + sum(steps[:n]) for n in range(len(steps) + 1)]
    lasting = int(2 / fps / base) + 1
    source = _Spaced(base, fps, len(times))
    frames = []
    for number, time in enumerate(times):
        gray = np.full((24, 16), 16 + number, np.uint8)
        gray[16:] = 128
        frame = av.VideoFrame.from_ndarray(gray, format="yuv420p")
        frame.pts, frame.time_base = time, base
        frame.duration = lasting if number == len(times) - 1 else 0
        frames.append(frame)
    shown = spaced_frames(frames, source, (16, 16))
    assert [int(f.to_ndarray()[0, 0]) - 16 for f in shown] == by_filter(times, base, fps, lasting)


class _Spaced:
    """As much of a Probe as spacing needs: pictures of 16x16, frames that are not even."""

    width = height = 16
    pix_fmt, matrix, colorspace, color_range, full_range = "yuv420p", "bt601", 5, 1, False
    constant, pixel_aspect = False, Fraction(1)

    def __init__(self, base: Fraction, fps: Fraction, packets: int) -> None:
        from matinee.media.probe import Orientation

        self.fps, self.packets, self.orientation = fps, 10_000_000, Orientation()


def test_a_slot_is_rounded_half_away_from_zero_in_exact_numbers():
    """Times of any size: no float in between."""
    half = Fraction(1, 50)
    assert [slot_of(n, half, Fraction(25)) for n in (-3, -1, 0, 1, 3)] == [-2, -1, 0, 1, 2]
    assert slot_of(2**62 + 1, Fraction(1), Fraction(3)) == 3 * (2**62 + 1)


@examples(max_examples=150)
@given(data=st.data())
def test_segments_decode_every_packet_and_fill_every_slot(data):
    """Over random packets: the planned ranges leave no packet and no output frame out."""
    count = data.draw(st.integers(1, 200))
    even = data.draw(st.booleans())
    steps = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    pts = np.arange(count) * 3 if even else np.cumsum(steps)
    keys = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    order = np.arange(count)
    for at in range(1, count - 1, 4):  # a reference stored before the frame shown before it
        if not keys[at : at + 2].any() and data.draw(st.booleans()):
            order[[at, at + 1]] = order[[at + 1, at]]
    base, fps = Fraction(1, 75), Fraction(25)
    packets = StoredPackets(
        pts[order], np.ones(count, np.int64), np.ones(count, bool), keys[order], base, 3
    )
    source = _Spaced(base, fps, count)
    source.constant = even
    per_chunk, chunks = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 3))
    try:
        cut = cut_segments(packets, source, frames_per_chunk=per_chunk, chunks=chunks)
    except MediaError:
        return
    untils = [count if s.until is None else s.until for s in cut]
    assert cut[0].packet == 0 and untils[-1] == count and cut[-1].until is None
    stop = 0
    for segment, until, following in zip(cut, untils, [*cut[1:], None], strict=True):
        assert segment.start == stop and segment.start % per_chunk == 0
        stop = segment.start + segment.frames
        assert segment.packet == 0 or packets.key[segment.packet]
        if following is not None:
            assert following.packet <= until
            assert following.first <= segment.first + segment.decode
            assert segment.frames >= chunks * per_chunk
    last = slot_of(int(pts[-1]), base, fps) + 1, slot_of(int(pts[-1]) + 3, base, fps)
    assert stop == (count if even else max(last) - slot_of(int(pts[0]), base, fps))
    assert cut[-1].first + cut[-1].decode == count


def test_damage_in_any_segment_is_found(tmp_path, film):
    """Noise over a packet, which one pass finds (not all noise fails to decode): so do segments."""
    path = film(tmp_path / "a.mp4", frames=120, options={"preset": "veryfast", "g": "12"})
    source, table = probe(path), scan_packets(path).table
    whole = path.read_bytes()
    cut = cut_segments(read_packets(path, source), source, frames_per_chunk=10, chunks=1)
    assert len(cut) >= 4
    size = target_size(source, 288)
    found: list[tuple[int, bool, bool]] = []
    for packet in range(0, 120, 9):
        data = bytearray(whole)
        at, length = int(table.offset[packet]), int(table.size[packet])
        data[at + length // 3 : at + length] = b"\xa5" * (length - length // 3)
        path.write_bytes(data)
        bad = 0
        for segment in cut:
            try:
                assert len(checks(segment_frames(path, source, size, segment))) == segment.frames
            except MediaError:
                bad += 1
        try:
            at_once(path, source)
            found.append((packet, False, bad > 0))
        except MediaError:
            found.append((packet, True, bad > 0))
    assert all(apart == together for _, together, apart in found), found
    assert sum(together for _, together, _ in found) >= 4


def test_a_file_of_changing_parameter_sets_is_not_cut(tmp_path, film):
    """Two transport streams of other settings behind each other: a key does not tell them."""
    parts = [
        film(
            tmp_path / f"{n}.ts", frames=60, times=range(100 * n, 100 * n + 60),
            options={"preset": "veryfast", "g": "12", "refs": refs},
        )
        for n, refs in enumerate(("1", "4"))
    ]  # fmt: skip
    both = tmp_path / "both.ts"
    both.write_bytes(b"".join(part.read_bytes() for part in parts))
    source = probe(parts[0])
    assert len(read_packets(parts[0], source).pts) == 60
    with pytest.raises(MediaError, match="parameter sets"):
        read_packets(both, source)


def test_a_seek_that_leads_astray_is_made_good_by_reading_from_the_beginning(
    tmp_path, film, monkeypatch
):
    """The key is known by its time and size, so landing elsewhere costs time only."""
    path = film(tmp_path / "a.mp4", frames=100, options={"preset": "veryfast", "g": "10"})
    source = probe(path)
    expected = at_once(path, source)
    monkeypatch.setattr("matinee.media.segments._LOOK_FOR_KEY", 0)
    assert apart(path, source, frames_per_chunk=10, chunks=1) == expected


def test_every_packet_is_decoded_by_some_segment(tmp_path, film, monkeypatch):
    """So damage anywhere is met, also in frames that uneven times leave out."""
    times, at = [], 0
    for number in range(120):
        times.append(at)
        at += 1 if number < 12 or 40 < number < 80 else 40  # crowded: most are never shown
    path = film(
        tmp_path / "a.mkv", frames=120, times=times, time_base=Fraction(1, 1000),
        options={"preset": "veryfast", "g": "9"},
    )  # fmt: skip
    source, met = probe(path), set()
    original = segments._packets

    def watched(*args):
        for number, packet in original(*args):
            if packet.size:
                met.add(number)
            yield number, packet

    monkeypatch.setattr(segments, "_packets", watched)
    expected = at_once(path, source)
    assert len(expected) < 100
    assert apart(path, source, frames_per_chunk=4, chunks=1) == expected
    assert met == set(range(120))


@pytest.mark.parametrize("wrong", [{"times": 1}, {"decode": 30}, {"size": 7}, {"frames": 7}])
def test_a_segment_that_comes_out_otherwise_than_planned_fails(tmp_path, film, wrong):
    """Times, number of frames, the key itself; a span of its own is only filled."""
    path = film(tmp_path / "a.mp4", frames=90, options={"preset": "veryfast", "g": "10"})
    source = probe(path)
    size = target_size(source, 288)
    cut = cut_segments(read_packets(path, source), source, frames_per_chunk=10, chunks=1)
    segment = replace(cut[2], **wrong)
    if "frames" in wrong:
        assert len(checks(segment_frames(path, source, size, segment))) == 7
        return
    with pytest.raises(MediaError, match="planned"):
        checks(segment_frames(path, source, size, segment))
