"""Files, tar members and folders of frames read alike; nothing else than was given is opened."""

from __future__ import annotations

import io
import pickle
import tarfile
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from matinee.errors import MediaError
from matinee.media.packets import scan_packets
from matinee.media.probe import probe
from matinee.media.source import (
    FrameFolder,
    TarMember,
    check_readable,
    exists,
    file_span,
    list_frames,
    open_bytes,
    open_video,
    size_of,
    stamp_of,
)


def frames_of(source) -> list[np.ndarray]:
    with open_video(source) as file:
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]


@pytest.fixture
def tar_and_files(tmp_path, film) -> tuple[list[TarMember], list[Path]]:
    """A tar of two films and a text, in a folder and of a name that protocols might trip over."""
    files = [film(tmp_path / f"{n}.mp4", frames=20 + n, seed=n) for n in range(2)]
    tar = tmp_path / "a,b:%d" / "x,,:y.tar"
    tar.parent.mkdir()
    with tarfile.open(tar, "w") as out:
        for n, file in enumerate(files):
            out.add(file, f"k/{n}.mp4")
            out.addfile(tarfile.TarInfo(f"k/{n}.txt"), io.BytesIO())
    with tarfile.open(tar) as made:
        members = [made.getmember(f"k/{n}.mp4") for n in range(2)]
    return [TarMember(tar, m.name, m.offset_data, m.size) for m in members], files


def test_a_tar_member_is_the_file_that_went_in(tar_and_files):
    """Bytes, frames, packet table, probe; byte ranges lie in the tar."""
    for member, file in zip(*tar_and_files, strict=True):
        assert size_of(member) == file.stat().st_size
        with open_bytes(member) as opened:
            assert opened.read() == file.read_bytes()
            opened.seek(-5, io.SEEK_END)
            assert opened.read(99) == file.read_bytes()[-5:]
        for a, b in zip(frames_of(member), frames_of(file), strict=True):
            assert np.array_equal(a, b)
        assert probe(member) == probe(file)
        table, alone = scan_packets(member).table, scan_packets(file).table
        assert np.array_equal(table.offset, alone.offset)
        path, offset, size = file_span(member)
        assert path.read_bytes()[offset : offset + size] == file.read_bytes()


def test_what_lies_behind_a_tar_member_is_not_read(tmp_path):
    """A member that claims half the film ends there, though the rest follows in the tar."""
    tar = tmp_path / "a.tar"
    tar.write_bytes(b"left" + b"inside" + b"right")
    with open_bytes(TarMember(tar, "m", 4, 6)) as opened:
        assert opened.read(100) == b"inside"
        opened.seek(3)
        assert opened.read(100) == b"ide"
        opened.seek(7)
        assert opened.read(1) == b""


def test_a_stream_without_an_end_of_its_own_ends_with_its_member(tmp_path, film):
    """MPEG-TS goes on as long as there are bytes: those of the next member are not its frames."""
    tar = tmp_path / "a.tar"
    with tarfile.open(tar, "w") as out:
        for n in range(2):
            out.add(film(tmp_path / f"{n}.ts", frames=20, seed=n), f"{n}.ts")
    with tarfile.open(tar) as made:
        first = made.getmember("0.ts")
    found = frames_of(TarMember(tar, "0.ts", first.offset_data, first.size))
    alone = frames_of(tmp_path / "0.ts")
    assert len(found) == len(alone) == 20
    assert all(np.array_equal(a, b) for a, b in zip(found, alone, strict=True))


def test_a_cut_short_tar_and_an_empty_member_are_refused(tar_and_files):
    member = tar_and_files[0][1]
    with member.tar.open("r+b") as file:
        file.truncate(member.offset + member.size - 1)
    with pytest.raises(OSError, match="cut short"):
        check_readable(member)
    with pytest.raises(MediaError, match="is empty"):
        open_video(TarMember(member.tar, "m", 0, 0))
    assert exists(member) and not exists(TarMember(member.tar.parent / "none", "m", 0, 1))
    assert stamp_of(TarMember(member.tar.parent / "none", "m", 0, 1)) == [0, 0]


@pytest.mark.parametrize(
    ("template", "ending"),
    [("img_{:05d}.jpg", "JPEG"), ("{:06d}.png", "PNG"), ("100%d_{}.png", "PNG")],
)
def test_a_folder_of_frames_is_a_film(tmp_path, template, ending):
    """Pixels as Pillow reads them (JPEG: but for its chroma), in the order of the numbers,
    evenly spaced at the rate.
    """
    folder = tmp_path / "with %d and , :"
    folder.mkdir()
    rng = np.random.default_rng(0)
    given = []
    for number in range(7, 19):  # 9 and 10: numbers of different lengths, without zeros
        small = rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)
        picture = Image.fromarray(small.repeat(16, 0).repeat(16, 1))
        picture.save(folder / template.format(number), ending)
        given.append(np.asarray(Image.open(folder / template.format(number)).convert("RGB")))
    (folder / "flow_x_00001.jpg").write_bytes(b"")
    (folder / "notes.txt").write_bytes(b"")
    source = FrameFolder(folder, Fraction(30000, 1001))
    found = frames_of(source)
    assert len(found) == len(given) == 12
    for a, b in zip(found, given, strict=True):
        assert np.abs(a.astype(int) - b).mean() <= (0 if ending == "PNG" else 8)
    facts = probe(source)
    assert (facts.fps, facts.packets, facts.constant) == (Fraction(30000, 1001), 12, True)
    assert facts.duration == pytest.approx(12 * 1.001 / 30)
    assert size_of(source) == sum((folder / n).stat().st_size for n in list_frames(folder).names)
    with pytest.raises(MediaError, match="folder of frames"):
        open_bytes(source)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["notes.txt"], "no numbered images"),
        (["flow_x_00001.jpg"], "no numbered images"),
        (["a1.jpg", "b1.jpg"], "several sequences"),
        (["a1.jpg", "a2.png"], "several sequences"),
        (["a1.jpg", "a3.jpg"], "lacks frame 2"),
        (["a1.jpg", "a01.jpg"], "frame 1 twice"),
        (["a01.jpg", "a2.jpg"], "several ways"),
    ],
)
def test_a_folder_without_one_sequence_is_refused(tmp_path, names, words):
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(MediaError, match=words):
        list_frames(tmp_path)


def test_a_changed_folder_or_file_has_another_stamp(tmp_path):
    """A frame more; a longer file; nothing there."""
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "1.png").write_bytes(b"x")
    source = FrameFolder(tmp_path / "f", Fraction(30))
    before = stamp_of(source)
    (tmp_path / "f" / "2.png").write_bytes(b"x")
    assert stamp_of(source) != before and stamp_of(tmp_path / "none") == [0, 0]


def test_sources_travel_to_other_processes_and_into_sets(tmp_path):
    sources = [
        tmp_path / "a",
        TarMember(tmp_path / "a", "m", 1, 2),
        FrameFolder(tmp_path, Fraction(3)),
    ]
    assert pickle.loads(pickle.dumps(sources)) == sources
    assert len({*sources, *sources}) == 3


@pytest.mark.parametrize("kind", ["ffconcat", "hls"])
def test_playlists_are_refused(tmp_path, film, kind):
    """They would be read in place of the file that was given."""
    film(tmp_path / "other.mp4", frames=5)
    if kind == "ffconcat":
        path = tmp_path / "list.mp4"
        path.write_text("ffconcat version 1.0\nfile other.mp4\n")
    else:
        path = tmp_path / "list.m3u8"
        path.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nother.mp4\n#EXT-X-ENDLIST\n")
    with av.open(str(path)) as opened:  # FFmpeg itself would
        assert sum(1 for _ in opened.decode(video=0)) == 5
    with pytest.raises(MediaError, match="playlist"):
        open_video(path)


def test_a_relative_name_is_no_protocol(tmp_path, film, monkeypatch):
    """A file called `concat:x.mp4` is opened as that file."""
    monkeypatch.chdir(tmp_path)
    film(tmp_path / "concat:x.mp4", frames=5)
    assert len(frames_of(Path("concat:x.mp4"))) == 5
