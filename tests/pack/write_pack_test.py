"""Packing folders: the sound ones are in, the others are listed with their reasons."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import signal
import subprocess
import tarfile
import threading
import time
import wave
from pathlib import Path, PurePosixPath

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from matinee.errors import ConfigError, MatineeError, PackError
from matinee.media.packets import scan_packets
from matinee.pack.annotations import Annotations, Sample, VideoFile, read_class_folders, read_table
from matinee.pack.profiles import make_profile
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.writer import write_pack

PROFILE = make_profile(preset="ultrafast", chunk_seconds=1.0)


def annotate(*paths: Path, **sample) -> Annotations:
    """A sample a file, all of class "a"."""
    videos = tuple(VideoFile(path.name, path) for path in paths)
    samples = tuple(Sample(v.id, v.id, label="a", split="train", **sample) for v in videos)
    return Annotations(videos, samples)


def failures(out: Path) -> dict[str, tuple[str, str]]:
    with (out / "failures.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["path"] for row in rows}) == len(rows)
    return {row["path"]: (row["kind"], row["reason"]) for row in rows}


def test_a_mixed_folder_packs_what_is_sound_and_lists_the_rest(tmp_path, film):
    """Text, sound, nothing, half a film, noise, a picture: each with its own reason."""
    root = tmp_path / "videos"
    good = [film(root / "a" / f"good{n}.mp4", frames=20, seed=n) for n in range(2)]
    good.append(film(root / "b" / "good.mkv", frames=20, seed=5))
    (root / "a" / "notes.txt").write_text("nothing")
    (root / "a" / "notes.mp4").write_text("nothing to see\n" * 30)
    (root / "a" / "empty.mp4").write_bytes(b"")
    with wave.open(str(root / "b" / "sound.mp4"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(8000))
    cut = film(root / "b" / "cut.mp4", frames=40, container={"movflags": "faststart"})
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 2 // 3])
    broken = film(root / "b" / "broken.mp4", frames=20)
    table, data = scan_packets(broken).table, bytearray(broken.read_bytes())
    a, n = int(table.offset[0]), int(table.size[0])
    data[a + n // 3 : a + n] = b"\xa5" * (n - n // 3)
    broken.write_bytes(data)
    frame = av.VideoFrame(64, 48, "rgb24")
    encoder = av.CodecContext.create("png", "w")
    encoder.width, encoder.height, encoder.pix_fmt, encoder.framerate = 64, 48, "rgb24", 1
    (root / "b" / "picture.mp4").write_bytes(bytes(encoder.encode(frame)[0]))
    (root / "b" / "gone.mp4").symlink_to("nowhere.mp4")

    report = write_pack(tmp_path / "pack", read_class_folders(root), PROFILE, workers=1)
    assert (report.videos, report.samples) == (3, 3)
    pack = Pack(tmp_path / "pack")
    assert pack.samples.column("sample").to_pylist() == [
        str(path.relative_to(root)) for path in sorted(good)
    ]
    assert pack.classes == ("a", "b")
    listed = failures(tmp_path / "pack")
    reasons = {Path(path).name: reason for path, (_, reason) in listed.items()}
    kinds = {Path(path).name: kind for path, (kind, _) in listed.items()}
    refused = ("notes.mp4", "empty.mp4", "sound.mp4", "cut.mp4", "broken.mp4", "picture.mp4")
    for name, word in zip(
        refused, ("video", "0 bytes", "no video stream", "truncated", "does not decode", "image"),
        strict=True,
    ):  # fmt: skip
        assert kinds[name] == "refused" and word in reasons[name], (name, reasons[name])
    assert kinds["notes.txt"] == "ignored"
    assert len(report.refused) + len(report.ignored) == len(listed)
    assert "gone.mp4" in kinds, "a link to nowhere is neither packed nor listed"


def test_files_that_are_missing_or_folders_are_refused_one_by_one(tmp_path, film):
    """A table's paths need not exist; the others are still packed."""
    root = tmp_path / "v"
    film(root / "good.mp4", frames=10)
    (root / "folder.mp4").mkdir()
    rows = ["good.mp4", "none.mp4", "folder.mp4", "good.mp4/inside.mp4", "x" * 300 + ".mp4"]
    table = tmp_path / "labels.csv"
    table.write_text("path,label\n" + "".join(f"{row},a\n" for row in rows))
    report = write_pack(tmp_path / "pack", read_table(table, root), PROFILE, workers=1)
    assert report.videos == 1
    assert len([f for f in report.refused if f.reason]) == 4


def test_the_columns_of_a_table_arrive_in_the_pack(tmp_path, film):
    """Labels, splits, spans, text and further columns; times become frames."""
    film(tmp_path / "v" / "one.mp4", frames=50)
    table = tmp_path / "labels.csv"
    table.write_text(
        "path,label,split,start,end,text,person\n"
        "one.mp4,run,train,0.4,1.2,runs,7\n"
        "one.mp4,walk,val,00:01,,,8\n"
    )
    write_pack(tmp_path / "pack", read_table(table, tmp_path / "v"), PROFILE, workers=1)
    pack = Pack(tmp_path / "pack")
    assert pack.samples.column("person").to_pylist() == ["7", "8"]
    assert pack.samples.column("text").to_pylist() == ["runs", None]
    first, second = pack.info(0), pack.info(1)
    assert (first.first_frame, first.num_frames, first.label, first.split) == (
        10,
        20,
        "run",
        "train",
    )
    assert (second.first_frame, second.num_frames) == (25, 25)
    assert pack.splits() == {"train": 1, "val": 1}


def test_a_sample_longer_than_its_video_is_refused_and_listed(tmp_path, film):
    """A tenth of a second over is rounding, more is a mistake in the labels."""
    path = film(tmp_path / "a.mp4", frames=50)
    spans = [(0.0, 2.0), (0.0, 2.08), (0.0, 2.2), (2.0, None), (1.9, None), (3.0, 4.0)]
    samples = tuple(
        Sample(f"a#{n}", "a.mp4", label="x", split="train", start=s, end=e)
        for n, (s, e) in enumerate(spans)
    )
    write_pack(
        tmp_path / "pack", Annotations((VideoFile("a.mp4", path),), samples), PROFILE, workers=1
    )
    pack = Pack(tmp_path / "pack")
    assert pack.samples.column("sample").to_pylist() == ["a#0", "a#1", "a#4"]
    assert pack.info(1).num_frames == 50
    listed = failures(tmp_path / "pack")
    assert sorted(key[-4:-1] for key in listed) == ["a#2", "a#3", "a#5"]
    assert all("2.000 s" in reason for _, reason in listed.values())


def test_plain_tools_read_a_pack(tmp_path, film):
    """tar gives MP4s that PyAV opens, parquet and npy are ordinary, names stay inside."""
    long = "n" * 120 + "/" + "m" * 120 + "/ü.mp4"
    paths = [film(tmp_path / "v" / name, frames=70) for name in ("a b.mp4", "x/..b.mp4", long)]
    videos = tuple(VideoFile(str(p.relative_to(tmp_path / "v")), p) for p in paths)
    samples = tuple(Sample(v.id, v.id, label="a", split="train") for v in videos)
    write_pack(tmp_path / "pack", Annotations(videos, samples), PROFILE, workers=1)
    rows = pq.read_table(tmp_path / "pack" / "chunks.parquet").to_pylist()
    assert len(rows) == 9
    with tarfile.open(tmp_path / "pack" / "shards" / "000000.tar") as tar:
        members = tar.getmembers()
        content = {member.name: tar.extractfile(member).read() for member in members}
        places = {member.name: member.offset_data for member in members}
    assert len(content) == 18
    for name in content:
        assert not name.startswith("/") and ".." not in PurePosixPath(name).parts
    by_place = {place: name for name, place in places.items()}
    for row in rows:
        name = by_place[row["offset"]]
        assert name.startswith(row["video"] + "/") and name.endswith(".mp4")
        assert name.endswith(f"{round(row['start_s'] * 1000):09d}.mp4")
        with av.open(io.BytesIO(content[name])) as file:
            assert sum(1 for _ in file.decode(video=0)) == row["frames"]
        table = np.load(io.BytesIO(content[by_place[row["table_offset"]]]))
        assert len(table) == row["frames"]
    with subprocess.Popen(
        ["tar", "tf", str(tmp_path / "pack" / "shards" / "000000.tar")], stdout=subprocess.PIPE
    ) as process:
        assert len(process.stdout.read().splitlines()) == 18


def test_a_name_that_is_not_utf_8_is_packed_or_listed(tmp_path, film):
    """Linux allows any bytes; one such file does not stop the others."""
    root = tmp_path / "v"
    film(root / "a" / "good.mp4", frames=10)
    odd = os.fsencode(root / "a") + b"/\xff\xfe.mp4"
    with open(odd, "wb") as file:
        file.write((root / "a" / "good.mp4").read_bytes())
    report = write_pack(tmp_path / "pack", read_class_folders(root), PROFILE, workers=1)
    assert report.videos + len(report.refused) == 2
    assert "a/good.mp4" in Pack(tmp_path / "pack").samples.column("sample").to_pylist()


def test_a_file_of_an_unknown_codec_does_not_stop_the_others(tmp_path, film):
    """Refused like any other, not an error of the run."""
    good, odd = (film(tmp_path / f"{n}.mp4", frames=10) for n in "ab")
    odd.write_bytes(odd.read_bytes().replace(b"avc1", b"zzzz").replace(b"avcC", b"zzzC"))
    report = write_pack(tmp_path / "pack", annotate(good, odd), PROFILE, workers=1)
    assert report.videos == 1 and len(report.refused) == 1


def test_a_file_that_brings_its_worker_down_is_refused_and_the_others_packed(tmp_path, film):
    """The worker is killed in the middle of the second film; another takes the third."""
    lengths = (10, 1500, 10)
    paths = [film(tmp_path / f"{n}.mp4", frames=k, seed=n) for n, k in enumerate(lengths)]
    killed: list[int] = []

    def kill_after_the_first(progress) -> None:
        if progress.videos == 1 and not killed:
            while not list((tmp_path / "p" / ".staging").glob("*/000001.*.tmp")):
                time.sleep(0.002)
            children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
            for pid in map(int, children.split()):
                if b"matinee.workers" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    killed.append(pid)
                    os.kill(pid, signal.SIGSEGV)

    report = write_pack(
        tmp_path / "p", annotate(*paths), PROFILE, workers=1, on_progress=kill_after_the_first
    )
    assert len(killed) == 1
    assert report.videos == 2
    (refusal,) = report.refused
    assert refusal.path.endswith("1.mp4") and "SIGSEGV" in refusal.reason


def test_nothing_sound_is_an_error_with_the_first_reason(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"")
    with pytest.raises(PackError, match=r"none of 1 videos is sound.*0 bytes"):
        write_pack(tmp_path / "pack", annotate(tmp_path / "a.mp4"), PROFILE, workers=1)
    with pytest.raises(PackError):
        Pack(tmp_path / "pack")


def test_packing_again_is_done_at_once(tmp_path, film):
    """The same source and settings: nothing is encoded, the same report."""
    path = film(tmp_path / "a.mp4", frames=20)
    first = write_pack(tmp_path / "pack", annotate(path), PROFILE, workers=1)
    again = write_pack(tmp_path / "pack", annotate(path), PROFILE, workers=1)
    assert not first.was_complete and again.was_complete
    assert again.counts() == first.counts()


def test_a_pack_of_other_settings_or_samples_is_not_overwritten_silently(tmp_path, film):
    """PackError names the way out; --overwrite takes it."""
    path = film(tmp_path / "a.mp4", frames=20)
    write_pack(tmp_path / "pack", annotate(path), PROFILE, workers=1)
    before = (tmp_path / "pack" / "pack.json").read_bytes()
    other = make_profile(preset="ultrafast", stride=2)
    with pytest.raises(PackError, match="--overwrite"):
        write_pack(tmp_path / "pack", annotate(path), other, workers=1)
    with pytest.raises(PackError, match="--overwrite"):
        write_pack(tmp_path / "pack", annotate(path, text="new"), PROFILE, workers=1)
    assert (tmp_path / "pack" / "pack.json").read_bytes() == before
    report = write_pack(tmp_path / "pack", annotate(path), other, workers=1, overwrite=True)
    assert not report.was_complete
    assert Pack(tmp_path / "pack").meta["profile"]["stride"] == 2


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("extra", [None, "pack.json", "shards/000000.tar"])
def test_a_folder_that_is_no_pack_is_never_deleted(tmp_path, film, overwrite, extra):
    """Not with --overwrite either, whatever lies in it: pack.json of another program, say."""
    path = film(tmp_path / "a.mp4", frames=10)
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter1.tex").write_text("years of work")
    if extra:
        (out / extra).parent.mkdir(exist_ok=True)
        (out / extra).write_text('{"name": "something else"}')
    before = sorted(out.rglob("*"))
    with pytest.raises((PackError, ConfigError)):
        write_pack(out, annotate(path), PROFILE, workers=1, overwrite=overwrite)
    assert sorted(out.rglob("*")) == before


def test_a_file_in_the_way_is_refused_and_kept(tmp_path, film):
    path = film(tmp_path / "a.mp4", frames=10)
    (tmp_path / "pack").write_text("a file")
    for overwrite in (False, True):
        with pytest.raises((PackError, ConfigError)):
            write_pack(tmp_path / "pack", annotate(path), PROFILE, workers=1, overwrite=overwrite)
    assert (tmp_path / "pack").read_text() == "a file"


@pytest.mark.parametrize("damage", ["not json", "[]", "{}", ""])
def test_packing_onto_a_damaged_pack_is_a_pack_error(tmp_path, film, damage):
    """One line about the damage, not a traceback."""
    path = film(tmp_path / "a.mp4", frames=10)
    write_pack(tmp_path / "pack", annotate(path), PROFILE, workers=1)
    (tmp_path / "pack" / "pack.json").write_text(damage)
    with pytest.raises(MatineeError):
        write_pack(tmp_path / "pack", annotate(path), PROFILE, workers=1)


def test_packing_onto_a_pack_without_its_failures_is_a_pack_error(tmp_path, film):
    """Complete by its manifest, but a file was deleted."""
    path = film(tmp_path / "a.mp4", frames=10)
    write_pack(tmp_path / "pack", annotate(path), PROFILE, workers=1)
    (tmp_path / "pack" / "failures.csv").unlink()
    with pytest.raises(PackError, match="damaged"):
        write_pack(tmp_path / "pack", annotate(path), PROFILE, workers=1)


@pytest.mark.parametrize("step", ["shard", "table", "manifest"])
def test_a_full_disk_while_assembling_says_so_and_the_next_run_continues(
    tmp_path, film, monkeypatch, step
):
    """ENOSPC from fsync at three places, then room again."""
    paths = [film(tmp_path / f"{n}.mp4", frames=10, seed=n) for n in range(2)]
    out, sync, hits = tmp_path / "pack", os.fsync, []
    name = {"shard": "000000.tar.", "table": "chunks.parquet.", "manifest": "pack.json."}[step]

    def full(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().name.startswith(name):
            hits.append(name)
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PackError, match="full"):
        write_pack(out, annotate(*paths), PROFILE, workers=1)
    assert hits
    with pytest.raises(PackError, match="unfinished"):
        Pack(out)
    monkeypatch.setattr(os, "fsync", sync)
    report = write_pack(out, annotate(*paths), PROFILE, workers=1)
    assert report.resumed == 2 and report.videos == 2
    assert len(Pack(out)) == 2


def test_the_number_of_workers_changes_no_byte(tmp_path, film):
    """One or three: the same folder; and the manifest counts what is there."""
    paths = [film(tmp_path / f"{n}.mp4", frames=30, seed=n) for n in range(4)]
    trees = []
    for workers in (1, 3):
        out = tmp_path / f"pack{workers}"
        write_pack(out, annotate(*paths), PROFILE, workers=workers)
        files = sorted(p for p in out.rglob("*") if p.is_file())
        trees.append({str(p.relative_to(out)): p.read_bytes() for p in files})
    # names, not contents: pytest would spend minutes on a diff of bytes
    assert [n for n in trees[0] | trees[1] if trees[0].get(n) != trees[1].get(n)] == []
    assert set(trees[0]) == {
        "pack.json", "chunks.parquet", "codecs.parquet", "files.parquet", "samples.parquet",
        "shards/000000.tar", "failures.csv",
    }  # fmt: skip
    meta = json.loads(trees[0]["pack.json"])
    assert meta["report"]["videos"] == 4 and meta["format"] == "matinee pack"


def test_progress_ends_at_all_videos(tmp_path, film):
    """Videos, chunks and seconds never go back, and end at what is in the pack."""
    paths = [film(tmp_path / f"{n}.mp4", frames=60, seed=n) for n in range(3)]
    seen = []
    report = write_pack(
        tmp_path / "p", annotate(*paths), PROFILE, workers=1, on_progress=seen.append
    )
    states = [(p.videos, p.chunks, p.seconds) for p in seen]
    assert states == sorted(states) and states[0] == (0, 0, 0)
    assert states[-1] == (3, report.chunks, pytest.approx(7.2))
    assert seen[-1].all_seconds == pytest.approx(7.2) and seen[-1].left == pytest.approx(0)
    assert report.realtime_factor > 0


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("best", {}), ("layered", {"stride": 0}), ("layered", {"stride": 17}),
        ("layered", {"crf": 52}), ("layered", {"short_side": 15}), ("layered", {"short_side": 17}),
        ("layered", {"chunk_seconds": 0.1}), ("layered", {"preset": "fastest"}),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_encoded_are_refused(name, settings):
    """ConfigError with the value, before any work."""
    with pytest.raises(ConfigError):
        make_profile(name, **settings)
