"""Other samples for a pack: its video untouched, and a reader sees the old or the new."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from matinee.cli import annotate as annotate_command
from matinee.cli import index as index_command
from matinee.cli import pack as pack_command
from matinee.errors import AnnotationError, ConfigError, PackError
from matinee.pack.annotations import read_class_folders
from matinee.pack.annotations.registry import read_annotations
from matinee.pack.format import MANIFEST, read_manifest
from matinee.pack.profiles import make_profile
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.annotate import annotate_pack
from matinee.pack.writing.finish import read_failures
from matinee.pack.writing.index import index_videos
from matinee.pack.writing.writer import write_pack

PROFILE = make_profile("layered", preset="ultrafast")


@pytest.fixture(scope="module")
def films(film, tmp_path_factory) -> Path:
    """Two classes of two films each, 25 frames a second, 30 to 45 frames; and one that is none."""
    root = tmp_path_factory.mktemp("films")
    for n in range(4):
        film(root / "ab"[n // 2] / f"{n}.mp4", frames=30 + 5 * n, size=(64, 48), seed=n)
    (root / "a" / "none.mp4").write_bytes(b"no video")
    return root


@pytest.fixture(scope="module")
def packed(films, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("packs") / "p"
    write_pack(out, read_class_folders(films), PROFILE, workers=1)
    return out


@pytest.fixture
def pack(packed, tmp_path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "p"))


def annotate(pack: Path, spec: str):
    return annotate_pack(pack, lambda videos: read_annotations(spec, videos))[0]


def table(path: Path, *rows: str) -> str:
    path.write_text("\n".join(["path,label,split,start,end,text,person", *rows]) + "\n")
    return f"table:{path}"


def video_bytes(pack: Path) -> dict[str, str]:
    names = [p for p in pack.rglob("*") if p.is_file()]
    return {
        str(p.relative_to(pack)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in names
        if not p.name.startswith(("samples", "failures", MANIFEST))
    }


@pytest.mark.parametrize("kind", ["pack", "index"])
def test_samples_are_replaced_and_the_video_is_left_alone(kind, films, pack, tmp_path):
    """Of packs and of indexes: rows, classes, columns, counts; every other file bit for bit."""
    if kind == "index":
        shutil.rmtree(pack)
        index_videos(pack, read_class_folders(films))
    before, frames = video_bytes(pack), Pack(pack).read(1, [0, 7])
    spec = table(
        tmp_path / "new.csv", "a/1.mp4,up,train,0,0.4,one,7", "a/1.mp4,down,val,0.4,1,two,8",
        "b/2.mp4,up,train,,,three,9",
    )  # fmt: skip
    report = annotate(pack, spec)
    assert (report.samples, report.videos, report.unused, report.refused) == (3, 2, 2, ())
    opened = Pack(pack)
    assert opened.classes == ("down", "up") and opened.splits() == {"train": 2, "val": 1}
    assert [opened.info(n).id for n in range(3)] == ["a/1.mp4#0", "a/1.mp4#1", "b/2.mp4"]
    assert opened.info(1).first_frame == 10 and opened.info(1).num_frames == 15
    assert [opened.captions(n) for n in range(3)] == [("one",), ("two",), ("three",)]
    assert opened.select("person=8").tolist() == [1]
    assert np.array_equal(opened.read(0, [0, 7]), frames)
    assert video_bytes(pack) == before
    counts = read_manifest(pack)["report"]
    assert counts["samples"] == 3 and counts["videos"] == 4 and counts["refused"] == 1
    assert [f.path for f in read_failures(pack)] == [str(films / "a" / "none.mp4")]


def test_samples_that_fit_no_video_are_listed(pack, tmp_path, films):
    """A video the pack lacks, a span beyond its end; the refusals of packing stay, once."""
    rows = ["a/1.mp4,up,train,0,1,,", "a/1.mp4,up,train,3,4,,", "c/9.mp4,up,train,,,,"]
    for _ in range(2):
        report = annotate(pack, table(tmp_path / "new.csv", *rows))
        assert {(f.path, f.reason) for f in report.refused} == {
            ("c/9.mp4", "is not in the pack"),
            ("a/1.mp4 (sample a/1.mp4#1)", "spans 3–4 s, but the video lasts 1.400 s"),
        }
        held = [failure.path for failure in read_failures(pack)]
        assert sorted(held) == sorted(
            [str(films / "a" / "none.mp4"), "c/9.mp4", "a/1.mp4 (sample a/1.mp4#1)"]
        )
        assert read_manifest(pack)["report"]["refused"] == 3


def test_the_samples_before_stay_until_the_next_time(pack, tmp_path):
    """A reader that has read the old pack.json finds its files; those before are gone."""
    names = []
    for n in range(4):
        annotate(pack, table(tmp_path / "new.csv", f"a/1.mp4,class{n},train,,,,"))
        names.append(sorted(p.name for p in pack.glob("samples*")))
        assert Pack(pack).classes == (f"class{n}",)
    assert names == [
        ["samples-1.parquet", "samples.parquet"],
        ["samples-1.parquet", "samples-2.parquet"],
        ["samples-2.parquet", "samples-3.parquet"],
        ["samples-3.parquet", "samples-4.parquet"],
    ]


def test_a_reader_at_any_moment_sees_one_or_the_other(pack, tmp_path):
    """A thread that opens the pack again and again, while it is annotated thirty times."""
    ended = threading.Event()
    seen, wrong = set(), []

    def look() -> None:
        while not ended.is_set():
            try:
                opened = Pack(pack)
                labels = set(opened.samples.column("label").to_pylist())
                seen.add(opened.classes)
                if labels != set(opened.classes) or len(opened) != opened.meta["report"]["samples"]:
                    wrong.append((labels, opened.classes))
            except PackError as error:
                wrong.append(error)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for n in range(30):
            rows = [f"a/1.mp4,class{n},train,0,{i + 1}e-1,," for i in range(n % 5 + 1)]
            annotate(pack, table(tmp_path / "new.csv", *rows))
    finally:
        ended.set()
        reader.join(30)
    assert not wrong and len(seen) > 3


CRASH = """
import os, signal, sys
from pathlib import Path
import matinee.files, matinee.pack.writing.annotate as annotate
from matinee.pack.annotations.registry import read_annotations
steps = int(sys.argv[3])
real = Path.replace
def replace(self, target):
    global steps
    if steps == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    steps -= 1
    return real(self, target)
Path.replace = replace
annotate.annotate_pack(sys.argv[1], lambda videos: read_annotations(sys.argv[2], videos))
"""


@pytest.mark.parametrize("step", [0, 1, 2])
def test_killed_between_any_two_files_the_pack_is_the_old_one(step, pack, tmp_path):
    """SIGKILL before each of the three renames; the next run is whole, and cleans up."""
    spec = table(tmp_path / "new.csv", "a/1.mp4,new,train,,,,")
    code = [sys.executable, "-c", CRASH, str(pack), spec, str(step)]
    done = subprocess.run(code, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert Pack(pack).classes == ("a", "b") and len(Pack(pack)) == 4
    annotate(pack, spec)
    assert Pack(pack).classes == ("new",)
    annotate(pack, spec)
    assert len(list(pack.glob("samples*.parquet"))) == 2


def test_refused_annotations_leave_the_pack_as_it_was(pack, tmp_path):
    """No video fits; a damaged file; no pack: nothing is written."""
    before = {p: p.stat().st_mtime_ns for p in pack.rglob("*")}
    with pytest.raises(AnnotationError, match=r"not one of the 1 videos .* is in "):
        annotate(pack, table(tmp_path / "new.csv", "z/1.mp4,up,train,,,,"))
    with pytest.raises(AnnotationError, match="line 2"):
        annotate(pack, table(tmp_path / "new.csv", "a/1.mp4,,train,,,,"))
    with pytest.raises(PackError, match="no sample fits a video"):
        annotate(pack, table(tmp_path / "new.csv", "a/1.mp4,up,train,8,9,,"))
    with pytest.raises(PackError, match="is no pack"):
        annotate(tmp_path, table(tmp_path / "new.csv", "a/1.mp4,up,train,,,,"))
    assert {p: p.stat().st_mtime_ns for p in pack.rglob("*")} == before


def test_an_annotated_pack_is_not_taken_for_what_packing_would_make(pack, films, tmp_path):
    """The same pack command is refused, and --overwrite makes it anew, all of it."""
    annotate(pack, table(tmp_path / "new.csv", "a/1.mp4,up,train,,,,"))
    with pytest.raises(PackError, match="already holds a pack of other videos or settings"):
        write_pack(pack, read_class_folders(films), PROFILE, workers=1)
    write_pack(pack, read_class_folders(films), PROFILE, workers=1, overwrite=True)
    assert Pack(pack).classes == ("a", "b") and not list(pack.glob("samples-*"))


@pytest.mark.parametrize("name", ["../out.parquet", "/etc/passwd", "samples-x.parquet", 7, ["a"]])
def test_a_manifest_that_names_another_file_is_refused(pack, name):
    """Nothing outside the pack is read by what its pack.json says."""
    meta = json.loads((pack / MANIFEST).read_text())
    meta["files"] = {"samples.parquet": name}
    (pack / MANIFEST).write_text(json.dumps(meta))
    with pytest.raises(PackError, match="no part of a pack"):
        Pack(pack)


def test_narrations_annotate_by_the_names_of_files(pack, tmp_path):
    """Stems, wherever the videos lie in the pack."""
    (tmp_path / "n.pkl").write_bytes(pickle.dumps([("3", 0.2, 0.8, "says")]))
    annotate(pack, f"narrations:{tmp_path / 'n.pkl'}")
    info = Pack(pack).info(0)
    assert (info.video, info.first_frame, info.num_frames) == ("b/3.mp4", 5, 15)


def test_the_commands_take_annotations(films, tmp_path, capsys):
    """pack, index and annotate: kinds, missing videos counted, what is wrong in one line."""
    rows = ["a/0.mp4,x,train,,,,", "b/2.mp4,y,val,,,,", "b/7.mp4,y,val,,,,"]
    spec = table(tmp_path / "l.csv", *rows)
    out = tmp_path / "p"
    common = [str(films), "--out", str(out)]
    args = [*common, "--annotations", spec, "--preset", "ultrafast", "--workers", "1"]
    assert pack_command.main(args) == 1
    said = capsys.readouterr()
    assert "1 of 3 videos are not below" in said.err and "1 refused" in said.out
    assert "b/7.mp4 cannot be read: no such file" in said.out
    assert len(Pack(out)) == 2
    new = table(tmp_path / "n.csv", "a/0.mp4,z,train,,,,", "q.mp4,z,train,,,,")
    report = tmp_path / "r.json"
    assert annotate_command.main([str(out), "--annotations", new, "--json", str(report)]) == 1
    assert json.loads(report.read_text())["samples"] == 1
    assert "failures-1.csv" in capsys.readouterr().out
    assert annotate_command.main([str(out), "--annotations", new, "--skip-bad"]) == 0
    args = [*common, "--overwrite", "--annotations", spec, "--skip-bad"]
    assert index_command.main(args) == 0 and Pack(out).classes == ("x", "y")
    for command in (pack_command, index_command, annotate_command):
        assert command.main(["--annotations", "help"]) == 0
        assert "epic100:EPIC_100_train.csv" in capsys.readouterr().out
    for more, words in [
        (["--annotations", spec, "--labels", "x"], "short for --annotations table"),
        (["--frames-fps", "25"], "no effect without --annotations tsm"),
        (["--annotations", spec, "--frames-fps", "25"], "no effect on --annotations table"),
        (["--annotations", "tsm:x", "--frames-fps", "0"], "above 0"),
        (["--annotations", "tsm:x", "--frames-fps", "1/0"], "a number such as 30"),
    ]:
        with pytest.raises(ConfigError, match=words):
            pack_command.main([*common, *more])


def test_tar_members_and_frame_folders_become_packs(films, tmp_path):
    """A film from a tar packs as the film itself; indexed, it is read in the tar. A folder of its
    frames packs to the same count; indexing it is refused.
    """
    import av

    shard = tmp_path / "train-0.tar"
    with tarfile.open(shard, "w") as tar:
        tar.add(films / "a" / "1.mp4", "1.mp4")
        tar.add(films / "b" / "3.mp4", "3.mp4")
        tar.add(films / "a" / "none.mp4", "none.mp4")
    from matinee.pack.annotations.finder import VideoFinder

    found = read_annotations(f"webdataset:{shard}", VideoFinder(tmp_path))
    report = write_pack(tmp_path / "t", found, PROFILE, workers=1)
    assert [f.path for f in report.refused] == [f"{shard}:none.mp4"]
    whole = Pack(write_pack(tmp_path / "w", read_class_folders(films), PROFILE, workers=1).out)
    place = {whole.info(n).video: n for n in range(len(whole))}
    index = index_videos(tmp_path / "i", found)
    assert index.videos == 2
    for made in (Pack(tmp_path / "t"), Pack(tmp_path / "i")):
        for n, name in enumerate(("a/1.mp4", "b/3.mp4")):
            wanted = [0, 13, 29]
            assert made.info(n).num_frames == whole.info(place[name]).num_frames
            a, b = made.read(n, wanted), whole.read(place[name], wanted)
            if made.path.name == "t":
                assert np.array_equal(a, b)
            else:  # the original against its encoding
                assert np.abs(a.astype(int) - b).mean() < 12
    frames = tmp_path / "frames" / "one"
    frames.mkdir(parents=True)
    with av.open(str(films / "b" / "3.mp4")) as file:
        for n, frame in enumerate(file.decode(video=0)):
            frame.to_image().save(frames / f"img_{n + 1:05d}.png")
    (tmp_path / "train_videofolder.txt").write_text("one 40 0\n")
    spec = f"tsm:{tmp_path / 'train_videofolder.txt'}"
    lists = read_annotations(spec, VideoFinder(tmp_path / "frames"), frames_fps=Fraction(25))
    pack = Pack(write_pack(tmp_path / "f", lists, PROFILE, workers=1).out)
    assert (pack.num_frames, pack.info(0).num_frames, pack.info(0).fps) == (45, 40, 25)
    a, b = pack.read(0, [0, 20, 39]), whole.read(place["b/3.mp4"], [0, 20, 39])
    assert np.abs(a.astype(int) - b).mean() < 12
    with pytest.raises(PackError, match="is a folder of frames"):
        index_videos(tmp_path / "g", lists)


def test_two_at_once_are_told(pack, tmp_path):
    """The second process does not begin."""
    handle = os.open(pack, os.O_RDONLY)
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(PackError, match="another process is annotating"):
        annotate(pack, table(tmp_path / "new.csv", "a/1.mp4,up,train,,,,"))
    os.close(handle)
