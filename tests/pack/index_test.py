"""Indexing in place: the frames of the original, or a reason why it has to be packed."""

from __future__ import annotations

import os
import tarfile
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from matinee.errors import ClipError, ConfigError, MediaError, PackError
from matinee.media.packets import scan_packets
from matinee.media.source import TarMember
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.index import index_videos

# name → file ending, encoder, options
ORIGINALS = {
    "x264 in MP4": ("mp4", "libx264", {"preset": "medium", "g": "24"}),
    "x264 in Matroska": ("mkv", "libx264", {"preset": "medium", "g": "24"}),
    "x264 in FLV": ("flv", "libx264", {"preset": "medium", "g": "24"}),
    "x264 in AVI": ("avi", "libx264", {"preset": "medium", "g": "24", "bf": "0"}),
    "x264 open GOP": (
        "mp4", "libx264", {"preset": "medium", "x264-params": "keyint=12:open-gop=1:bframes=3"},
    ),
    "MPEG-4 in AVI": ("avi", "mpeg4", {"bf": "2", "g": "12"}),
    "VP9": ("webm", "libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "g": "24"}),
    "VP8 with hidden frames": (
        "webm", "libvpx",
        {"deadline": "good", "cpu-used": "5", "g": "24", "auto-alt-ref": "1",
         "lag-in-frames": "16"},
    ),
    "HEVC": (
        "mp4", "libx265",
        {"preset": "ultrafast", "x265-params": "keyint=12:log-level=none:pools=none"},
    ),
    "HEVC in Matroska": (
        "mkv", "libx265",
        {"preset": "ultrafast", "x265-params": "keyint=12:bframes=4:log-level=none:pools=none"},
    ),
    "AV1": ("mp4", "libsvtav1", {"preset": "12", "g": "20"}),
    "AV1 in WebM": ("webm", "libsvtav1", {"preset": "12", "g": "20"}),
    "MPEG-2 in AVI": ("avi", "mpeg2video", {"bf": "2", "g": "12"}),
    "MPEG-4 in MOV": ("mov", "mpeg4", {"bf": "2", "g": "12"}),
    "x264 in MOV": ("mov", "libx264", {"preset": "medium", "g": "24"}),
}  # fmt: skip


def annotate(*paths: Path) -> Annotations:
    videos = tuple(VideoFile(path.name, path) for path in paths)
    samples = tuple(Sample(v.id, v.id, label="a", split="train") for v in videos)
    return Annotations(videos, samples)


@pytest.mark.parametrize("name", ORIGINALS)
def test_indexed_clips_are_the_frames_of_the_original(name, tmp_path, film, sequential):
    """Bit for bit as decoding the whole file gives them."""
    ending, codec, options = ORIGINALS[name]
    path = film(tmp_path / f"a.{ending}", frames=60, codec=codec, options=options)
    index_videos(tmp_path / "pack", annotate(path), workers=1)
    frames, pack = sequential(path), Pack(tmp_path / "pack")
    assert pack.info(0).num_frames == len(frames) == 60
    rng = np.random.default_rng(0)
    for _ in range(15):
        wanted = rng.integers(0, 60, 5).tolist()
        clip = pack.read(0, wanted, pixels="i420")
        for row, frame in zip(clip, wanted, strict=True):
            assert np.array_equal(row, frames[frame]), f"frame {frame} of {wanted}"


@pytest.mark.parametrize(
    ("ending", "codec", "options", "why"),
    [
        ("avi", "libx264", {"preset": "medium"}, "AVI with reordered frames"),
        ("ts", "libx264", {"preset": "veryfast"}, "MPEG-TS cuts each frame into pieces"),
        ("mpg", "mpeg2video", {}, "program streams cut frames into pieces"),
        ("asf", "mpeg4", {}, "ASF cuts frames into pieces"),
        ("mkv", "ffv1", {}, "ffv1, whose references between frames cannot be told"),
        ("h264", "libx264", {"preset": "veryfast"}, "no presentation times"),
    ],
)
def test_what_is_no_list_of_byte_ranges_is_refused_with_the_reason(
    ending, codec, options, why, tmp_path, film
):
    """Containers that cut frames up or keep no order, codecs whose packets tell nothing."""
    path = film(tmp_path / f"a.{ending}", frames=30, codec=codec, options=options)
    with pytest.raises(PackError, match=f"a.{ending} .*{why}.*pack it"):
        index_videos(tmp_path / "pack", annotate(path), workers=1)


def test_a_fragmented_mp4_is_indexed(tmp_path, film, sequential):
    """Its packet positions lie in several fragments."""
    path = film(
        tmp_path / "a.mp4", frames=60, options={"preset": "fast", "g": "12"},
        container={"movflags": "frag_keyframe+empty_moov+default_base_moof"},
    )  # fmt: skip
    assert path.read_bytes().count(b"moof") >= 5
    index_videos(tmp_path / "pack", annotate(path), workers=1)
    frames, pack = sequential(path), Pack(tmp_path / "pack")
    wanted = [59, 0, 31, 30, 12]
    assert np.array_equal(pack.read(0, wanted, pixels="i420"), [frames[f] for f in wanted])


def test_matroska_blocks_that_lack_their_first_bytes_are_refused(tmp_path, film):
    """Header stripping (Matroska, ContentCompAlgo 3): a packet is not what lies in the file."""
    path = film(tmp_path / "a.mkv", frames=20, container={"live": "1", "write_crc32": "0"})
    data = bytearray(path.read_bytes())
    strips = element("4254", b"\3") + element("4255", b"\0\0")
    encoding = element("5031", b"\0") + element("5032", b"\1") + element("5033", b"\0")
    added = element("6d80", element("6240", encoding + element("5034", strips)))
    at = data.rindex(bytes.fromhex("1654ae6b"))  # the first is in the list of places
    start, end = content_of(data, at + 4)  # the tracks: one entry, AE
    first, last = content_of(data, start + 1)
    entry = data[first:last] + added
    data[at:end] = long_element("1654ae6b", long_element("ae", entry) + data[last:end])
    path.write_bytes(data)
    with pytest.raises(MediaError, match="compresses its blocks or strips"):
        scan_packets(path)


def element(name: str, content: bytes) -> bytes:
    """An EBML element of less than 127 bytes."""
    return bytes.fromhex(name) + bytes([0x80 | len(content)]) + content


def long_element(name: str, content: bytes) -> bytes:
    return bytes.fromhex(name) + b"\1" + len(content).to_bytes(7, "big") + content


def content_of(data: bytes, at: int) -> tuple[int, int]:
    """Start and end of the content of an EBML element whose size stands at `at`."""
    width = 9 - data[at].bit_length()
    size = int.from_bytes(data[at : at + width], "big") & ((1 << 7 * width) - 1)
    return at + width, at + width + size


def test_packed_b_frames_are_refused(tmp_path, film):
    """DivX's way: a packet holds a P- and a B-frame, and a placeholder follows."""
    path = film(
        tmp_path / "a.avi", frames=20, codec="mpeg4", options={"bf": "1", "b_strategy": "0"}
    )
    packed = tmp_path / "packed.avi"
    with av.open(str(path)) as file, av.open(str(packed), "w") as out:
        stream = out.add_stream_from_template(file.streams.video[0])
        packets = [bytes(p) for p in file.demux(video=0) if p.size]
        placeholder = b"\0\0\1\xb6\x57\xff"
        pieces = [packets[0]]
        for p, b in zip(packets[1::2], packets[2::2], strict=False):
            pieces += [p + b, placeholder]
        for number, payload in enumerate(pieces):
            packet = av.Packet(payload)
            packet.stream, packet.pts, packet.dts = stream, number, number
            packet.time_base, packet.is_keyframe = Fraction(1, 25), number == 0
            out.mux(packet)
    with pytest.raises(MediaError, match=r"holds 2 frames .*pack it"):
        scan_packets(packed)


def test_a_file_whose_container_tells_the_decoder_something_is_refused(tmp_path, film):
    """An AVI's tag XVID makes FFmpeg take another inverse transform: other pixels without it."""
    options = {"bf": "0", "flags": "+bitexact"}  # no word of the encoder in the packets either
    for tag in ("FMP4", "XVID"):
        film(
            tmp_path / f"{tag}.avi", frames=20, codec="mpeg4", options=options,
            stream={"codec_tag": tag},
        )  # fmt: skip
    report = index_videos(
        tmp_path / "pack", annotate(tmp_path / "FMP4.avi", tmp_path / "XVID.avi"), workers=1
    )
    (refusal,) = report.refused
    assert refusal.path.endswith("XVID.avi") and "without its container" in refusal.reason


def test_a_cut_that_hides_its_first_frames_starts_where_it_is_shown(tmp_path, film, sequential):
    """A stream copy from amid a GOP: an edit list hides what only serves as reference."""
    path = film(tmp_path / "a.mp4", frames=60, options={"preset": "medium", "g": "20"})
    cut = tmp_path / "cut.mp4"
    with av.open(str(path)) as file, av.open(str(cut), "w") as out:
        theirs = file.streams.video[0]
        stream = out.add_stream_from_template(theirs)
        for packet in file.demux(theirs):
            if packet.size:
                packet.pts -= round(7 / 25 / packet.time_base)
                packet.dts -= round(7 / 25 / packet.time_base)
                packet.stream = stream
                out.mux(packet)
    frames, table = sequential(cut), scan_packets(cut).table
    assert table.num_frames == len(frames) == 53 and table.frame[0] == -1
    index_videos(tmp_path / "pack", annotate(cut), workers=1)
    pack = Pack(tmp_path / "pack")
    for wanted in ([0], [1, 2], [12], [13], [30, 5, 52]):
        clip = pack.read(0, wanted, pixels="i420")
        assert np.array_equal(clip, [frames[f] for f in wanted]), wanted


def test_an_hevc_cut_begins_with_the_frames_that_decode(tmp_path, film, sequential):
    """Cut at an open GOP: its leading pictures refer to what is gone, and no decoder shows them."""
    path = film(
        tmp_path / "a.mkv", frames=48, codec="libx265",
        options={"preset": "fast",
                 "x265-params": "keyint=12:min-keyint=12:scenecut=0:bframes=4:b-adapt=0:open-gop=1:"
                                "log-level=none:pools=none"},
    )  # fmt: skip
    cut = tmp_path / "cut.mkv"
    with av.open(str(path)) as file, av.open(str(cut), "w") as out:
        theirs = file.streams.video[0]
        stream = out.add_stream_from_template(theirs)
        keys = 0
        for packet in file.demux(theirs):
            keys += packet.is_keyframe
            if packet.size and keys >= 2:
                packet.stream = stream
                out.mux(packet)
    frames, scan = sequential(cut), scan_packets(cut)
    assert scan.table.num_frames == len(frames) < len(scan.table.frame)
    index_videos(tmp_path / "pack", annotate(cut), workers=1)
    pack = Pack(tmp_path / "pack")
    for frame in range(len(frames)):
        assert np.array_equal(pack.read(0, [frame], pixels="i420")[0], frames[frame]), frame


def test_two_frames_at_one_time_are_refused(tmp_path, film):
    """Their order would be a guess."""
    path = film(tmp_path / "a.mkv", frames=20, options={"preset": "fast", "bf": "0"})
    twice = tmp_path / "twice.mkv"
    with av.open(str(path)) as file, av.open(str(twice), "w") as out:
        theirs = file.streams.video[0]
        stream = out.add_stream_from_template(theirs)
        for number, packet in enumerate(file.demux(theirs)):
            if packet.size:
                packet.pts -= 40 * (number == 7)
                packet.dts = packet.pts
                packet.stream = stream
                out.mux(packet)
    with pytest.raises(MediaError, match="same presentation time"):
        scan_packets(twice)


def test_an_encrypted_file_is_refused(tmp_path, film):
    """Common Encryption: its packets are noise without the key."""
    path = film(
        tmp_path / "a.mp4", frames=20,
        container={"encryption_scheme": "cenc-aes-ctr", "encryption_key": "76" * 16,
                   "encryption_kid": "a7" * 16},
    )  # fmt: skip
    with pytest.raises(MediaError, match="encrypted"):
        scan_packets(path)
    with pytest.raises(PackError, match="encrypted"):
        index_videos(tmp_path / "pack", annotate(path), workers=1)


def test_the_number_of_workers_does_not_change_an_index(tmp_path, film):
    """The same bytes; and progress counts every file once, refused ones too."""
    paths = [film(tmp_path / f"{n}.mp4", frames=60 - 9 * n, seed=n) for n in range(5)]
    paths[2].write_bytes(b"no video")
    steps: list[tuple[int, int]] = []
    for workers in (1, 2):
        index_videos(
            tmp_path / f"pack{workers}", annotate(*paths), workers=workers,
            on_progress=lambda done, total, seconds: steps.append((done, total)),
        )  # fmt: skip
    tables = [(tmp_path / f"pack{n}" / "tables.bin").read_bytes() for n in (1, 2)]
    assert tables[0] == tables[1]
    one, two = Pack(tmp_path / "pack1"), Pack(tmp_path / "pack2")
    for index in range(4):
        assert one.info(index) == two.info(index)
        assert np.array_equal(one.read(index, [3, 9]), two.read(index, [3, 9]))
    assert steps[0] == (0, 5) and steps[-1] == (5, 5)
    with pytest.raises(ConfigError, match="--workers 0"):
        index_videos(tmp_path / "pack0", annotate(*paths), workers=0)


def test_members_of_a_tar_are_indexed_in_place(tmp_path, film, sequential):
    """The tar is neither unpacked nor copied."""
    films = [film(tmp_path / f"{n}.mp4", frames=30, seed=n) for n in range(2)]
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        for path in films:
            tar.add(path, path.name)
    with tarfile.open(tmp_path / "all.tar") as tar:
        members = [
            TarMember(tmp_path / "all.tar", m.name, m.offset_data, m.size) for m in tar.getmembers()
        ]
    videos = tuple(VideoFile(member.name, member) for member in members)
    samples = tuple(Sample(v.id, v.id, label="a", split="train") for v in videos)
    index_videos(tmp_path / "pack", Annotations(videos, samples), workers=1)
    pack = Pack(tmp_path / "pack")
    for index, path in enumerate(films):
        frames = sequential(path)
        clip = pack.read(index, [29, 0, 14], pixels="i420")
        assert np.array_equal(clip, [frames[f] for f in (29, 0, 14)])


def test_the_original_is_not_copied_nor_touched(tmp_path, film):
    path = film(tmp_path / "a.mp4", frames=30)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    index_videos(tmp_path / "pack", annotate(path))
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    size = sum(p.stat().st_size for p in (tmp_path / "pack").rglob("*"))
    assert not list((tmp_path / "pack").rglob("*.tar")) and size < 60_000


@pytest.mark.parametrize("change", ["bytes", "time", "gone"])
def test_an_original_that_changed_or_is_gone_is_refused(tmp_path, film, change):
    path = film(tmp_path / "a.mp4", frames=20)
    index_videos(tmp_path / "pack", annotate(path))
    if change == "gone":
        path.unlink()
    elif change == "time":
        os.utime(path, ns=(1, 1))
    else:
        path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(PackError, match="gone" if change == "gone" else "changed"):
        Pack(tmp_path / "pack")


def test_an_original_that_shrinks_while_open_is_a_clip_error(tmp_path, film):
    path = film(tmp_path / "a.mp4", frames=20)
    index_videos(tmp_path / "pack", annotate(path))
    pack = Pack(tmp_path / "pack")
    os.truncate(path, 100)
    with pytest.raises(ClipError, match="cut short"):
        pack.read(0, [3])


def test_films_that_must_be_normalised_are_refused_with_what_they_need(tmp_path, film):
    """Turned, anamorphic, uneven: each is named, and the plain one is indexed."""
    plain = film(tmp_path / "plain.mp4", frames=10)
    wide = film(tmp_path / "wide.mp4", frames=10, stream={"sample_aspect_ratio": Fraction(64, 45)})
    uneven = film(
        tmp_path / "uneven.mp4", content=[np.full((64, 96, 3), n, np.uint8) for n in range(10)],
        times=[0, 1, 2, 3, 4, 5, 20, 21, 22, 23],
    )  # fmt: skip
    turned = film(tmp_path / "turned.mp4", frames=10)
    data = bytearray(turned.read_bytes())
    at = data.index(b"tkhd") + 44
    one = 1 << 16
    data[at : at + 36] = np.array([0, one, 0, -one, 0, 0, 0, 0, 1 << 30], ">i4").tobytes()
    turned.write_bytes(data)
    report = index_videos(tmp_path / "pack", annotate(plain, wide, uneven, turned))
    reasons = {Path(f.path).name: f.reason for f in report.refused}
    assert report.videos == 1 and set(reasons) == {"wide.mp4", "uneven.mp4", "turned.mp4"}
    assert "square pixels" in reasons["wide.mp4"]
    assert "evenly" in reasons["uneven.mp4"]
    assert "upright" in reasons["turned.mp4"]


def test_missing_and_broken_files_are_refused_one_by_one(tmp_path, film):
    good = film(tmp_path / "good.mp4", frames=10)
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "folder.mp4").mkdir()
    names = ["empty.mp4", "none.mp4", "folder.mp4", "good.mp4/inside.mp4"]
    report = index_videos(tmp_path / "p", annotate(good, *(tmp_path / n for n in names)))
    assert report.videos == 1 and len(report.refused) == 4


def test_an_existing_folder_is_not_indexed_over(tmp_path, film):
    """PackError; with overwrite a pack is replaced, and anything else stays."""
    path = film(tmp_path / "a.mp4", frames=10)
    index_videos(tmp_path / "pack", annotate(path))
    with pytest.raises(PackError, match="--overwrite"):
        index_videos(tmp_path / "pack", annotate(path))
    index_videos(tmp_path / "pack", annotate(path), overwrite=True)
    assert len(Pack(tmp_path / "pack")) == 1


@pytest.mark.parametrize("extra", ["tables.bin", "pack.json"])
def test_overwriting_leaves_a_folder_that_is_no_pack_alone(tmp_path, film, extra):
    """Somebody's folder keeps all its files, as they were."""
    path = film(tmp_path / "a.mp4", frames=10)
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter1.tex").write_text("years of work")
    (out / extra).write_text("{}")
    with pytest.raises((PackError, ConfigError)):
        index_videos(out, annotate(path), overwrite=True)
    assert {p.name: p.read_text() for p in out.iterdir()} == {
        "chapter1.tex": "years of work", extra: "{}",
    }  # fmt: skip
