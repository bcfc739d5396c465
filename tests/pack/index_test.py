"""Indexing in place: the frames of the original, or a reason why it has to be packed."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from matinee.errors import ClipError, ConfigError, PackError
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.index import index_videos
from matinee.pack.reader import Pack

# name → file ending, encoder, options
ORIGINALS = {
    "x264 in MP4": ("mp4", "libx264", {"preset": "medium", "g": "24"}),
    "x264 in Matroska": ("mkv", "libx264", {"preset": "medium", "g": "24"}),
    "x264 in FLV": ("flv", "libx264", {"preset": "medium", "g": "24"}),
    "x264 in AVI": ("avi", "libx264", {"preset": "medium", "g": "24"}),
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
}  # fmt: skip


def annotate(*paths: Path) -> Annotations:
    videos = tuple(VideoFile(path.name, path) for path in paths)
    samples = tuple(Sample(v.id, v.id, label="a", split="train") for v in videos)
    return Annotations(videos, samples)


@pytest.mark.parametrize("name", ORIGINALS)
def test_indexed_clips_are_the_frames_of_the_original(name, tmp_path, film, sequential):
    """Bit for bit as decoding the whole file gives them, or the file is refused: never others."""
    ending, codec, options = ORIGINALS[name]
    path = film(tmp_path / f"a.{ending}", frames=60, codec=codec, options=options)
    try:
        index_videos(tmp_path / "pack", annotate(path))
    except PackError as error:
        assert ending == "avi" and str(path) in str(error)
        return
    frames, pack = sequential(path), Pack(tmp_path / "pack")
    assert pack.info(0).num_frames == len(frames) == 60
    rng = np.random.default_rng(0)
    for _ in range(15):
        wanted = rng.integers(0, 60, 5).tolist()
        clip = pack.read(0, wanted, pixels="i420")
        for row, frame in zip(clip, wanted, strict=True):
            assert np.array_equal(row, frames[frame]), f"frame {frame} of {wanted}"


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
