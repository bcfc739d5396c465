"""kill -9 at any moment: the next run ends with the pack that an undisturbed run makes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from matinee.errors import PackError
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.profiles import make_profile
from matinee.pack.reading.reader import Pack
from matinee.pack.writing import finish, shards, writer
from matinee.pack.writing.encode_job import EncodeJob, Job
from matinee.pack.writing.index import index_videos
from matinee.pack.writing.staging import Locks
from matinee.pack.writing.writer import write_pack

PROFILE = make_profile(preset="ultrafast", chunk_seconds=1.0)
CODE = """
import sys
from pathlib import Path
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.profiles import make_profile
from matinee.pack.writing.writer import write_pack
out, *paths = map(Path, sys.argv[1:])
videos = tuple(VideoFile(p.name, p) for p in paths)
samples = tuple(Sample(v.id, v.id, label="a", split="train") for v in videos)
profile = make_profile(preset="ultrafast", chunk_seconds=1.0)
write_pack(out, Annotations(videos, samples), profile, workers=2)
"""


def annotate(paths: list[Path]) -> Annotations:
    videos = tuple(VideoFile(path.name, path) for path in paths)
    samples = tuple(Sample(v.id, v.id, label="a", split="train") for v in videos)
    return Annotations(videos, samples)


def tree(out: Path) -> dict[str, bytes]:
    files = sorted(p for p in out.rglob("*") if p.is_file())
    return {str(p.relative_to(out)): p.read_bytes() for p in files}


def differing(a: dict[str, bytes], b: dict[str, bytes]) -> list[str]:
    """Names only: pytest would spend minutes on a diff of bytes."""
    return sorted(name for name in a | b if a.get(name) != b.get(name))


@pytest.fixture(scope="module")
def films(tmp_path_factory, film) -> list[Path]:
    """Six sound films and one that is none."""
    root = tmp_path_factory.mktemp("films")
    paths = [film(root / f"{n}.mp4", frames=60 + n, seed=n) for n in range(6)]
    (root / "bad.mp4").write_bytes(b"")
    return [*paths, root / "bad.mp4"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, films) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed") / "pack"
    write_pack(out, annotate(films), PROFILE, workers=2)
    return tree(out)


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_run_continues_to_the_same_bytes(tmp_path, films, undisturbed, seed):
    """A process that packs is killed after some parts are done, three times, and run again."""
    rng, out = random.Random(seed), tmp_path / "pack"
    command = [sys.executable, "-c", CODE, str(out), *map(str, films)]
    for _ in range(3):
        with subprocess.Popen(command) as process:
            enough = len(list(out.glob(".staging/*/0*.json"))) + rng.randrange(3)
            while process.poll() is None and not (out / "pack.json").exists():
                if len(list(out.glob(".staging/*/0*.json"))) >= enough:
                    break
                time.sleep(0.002)
            time.sleep(rng.random() * 0.05)
            process.kill()
    report = write_pack(out, annotate(films), PROFILE, workers=2)
    assert report.videos == 6 and len(report.refused) == 1
    assert differing(tree(out), undisturbed) == []
    assert not (out / ".staging").exists()


class Killed(BaseException):
    """Stands for kill -9: nothing in the package catches it."""


def run_until(monkeypatch, call: int, action) -> bool:
    """Run `action`, dying at the call-th change to the disk; whether it died."""
    count = 0

    def dying(original):
        def change(*args, **kwargs):
            nonlocal count
            count += 1
            if count > call:
                raise Killed
            return original(*args, **kwargs)

        return change

    with monkeypatch.context() as patch:
        for owner, name in (
            (os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir"), (shutil, "rmtree"),
        ):  # fmt: skip
            patch.setattr(owner, name, dying(getattr(owner, name)))
        try:
            action()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("shard_bytes", [1, 1 << 30], ids=["a shard a video", "one shard"])
def test_dying_at_any_step_of_assembling_loses_nothing(tmp_path, films, monkeypatch, shard_bytes):
    """Before every fsync, rename, unlink: die, run again, compare the whole folder."""
    monkeypatch.setattr(shards, "SHARD_BYTES", shard_bytes)
    annotations, ready = annotate([*films[:2], films[-1]]), tmp_path / "ready"
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_assemble", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            write_pack(ready, annotations, PROFILE, workers=2)
    whole = tmp_path / "whole"
    shutil.copytree(ready, whole)
    write_pack(whole, annotations, PROFILE)
    expected, steps, died = tree(whole), 0, True
    while died:
        out = tmp_path / f"out{steps}"
        shutil.copytree(ready, out)
        died = run_until(monkeypatch, steps, lambda out=out: write_pack(out, annotations, PROFILE))
        again = write_pack(out, annotations, PROFILE, workers=1)
        assert differing(tree(out), expected) == [], f"after dying at step {steps}"
        assert again.videos == 2
        assert not (out / ".staging").exists(), f"staging left after dying at step {steps}"
        shutil.rmtree(out)
        steps += 1
    assert steps > 15


def test_dying_at_any_step_of_the_start_can_be_continued(tmp_path, film, monkeypatch):
    """Also before the job is described: the same command goes on, no folder has to be removed."""
    annotations = annotate([film(tmp_path / "a.mp4", frames=10)])
    for step in range(5):
        out = tmp_path / f"out{step}"
        run_until(monkeypatch, step, lambda out=out: write_pack(out, annotations, PROFILE))
        report = write_pack(out, annotations, PROFILE, workers=1)
        assert report.videos == 1, f"after dying at step {step}"


def test_dying_while_overwriting_can_be_overwritten_again(tmp_path, film, monkeypatch):
    """Between deleting the manifest and the rest, the folder is still known as a pack."""
    annotations = annotate([film(tmp_path / "a.mp4", frames=10)])
    for step in range(4):
        out = tmp_path / f"out{step}"
        write_pack(out, annotations, PROFILE, workers=1)
        run_until(
            monkeypatch, step,
            lambda out=out: write_pack(out, annotations, PROFILE, workers=1, overwrite=True),
        )  # fmt: skip
        report = write_pack(out, annotations, PROFILE, workers=1, overwrite=True)
        assert report.videos == 1, f"after dying at step {step}"


def interrupted(out: Path, annotations: Annotations, monkeypatch) -> None:
    """All parts encoded, none assembled."""
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_assemble", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            write_pack(out, annotations, PROFILE, workers=1)


@pytest.mark.parametrize("shards_made", [False, True])
def test_a_source_that_changed_in_between_is_encoded_anew(tmp_path, film, monkeypatch, shards_made):
    """Same size, other content and time: the pack holds the new film, and only it is redone."""
    a, b = (film(tmp_path / f"{n}.mkv", frames=30, seed=n) for n in range(2))
    annotations, out = annotate([a, b]), tmp_path / "pack"
    interrupted(out, annotations, monkeypatch)
    if shards_made:
        monkeypatch.setattr(finish, "write_tables", lambda *_, **__: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            write_pack(out, annotations, PROFILE, workers=1)
        monkeypatch.undo()
        assert (out / "shards" / "000000.tar").exists()
    size = a.stat().st_size
    new = film(tmp_path / "new.mkv", frames=20, seed=9)
    data = new.read_bytes()
    assert len(data) < size
    filler = size - len(data)  # an EBML Void element fills the file up to the old size
    void = b"\xec" + (0x01 << 56 | (filler - 9)).to_bytes(8, "big") + bytes(filler - 9)
    a.write_bytes(data + void)
    assert a.stat().st_size == size
    report = write_pack(out, annotations, PROFILE, workers=1)
    assert report.resumed == (0 if shards_made else 1)
    fresh = tmp_path / "fresh"
    write_pack(fresh, annotations, PROFILE, workers=1)
    assert differing(tree(out), tree(fresh)) == []
    assert Pack(out).info(0).num_frames == 20


def test_an_unfinished_pack_continues_after_a_source_has_grown(tmp_path, film, monkeypatch):
    """Another size: only that film is encoded anew, and the pack is as a fresh one."""
    a, b = (film(tmp_path / f"{n}.mp4", frames=30, seed=n) for n in range(2))
    annotations, out = annotate([a, b]), tmp_path / "pack"
    interrupted(out, annotations, monkeypatch)
    size = a.stat().st_size
    film(a, frames=45, seed=7)
    assert a.stat().st_size != size
    assert write_pack(out, annotations, PROFILE, workers=1).resumed == 1
    write_pack(tmp_path / "fresh", annotations, PROFILE, workers=1)
    assert differing(tree(out), tree(tmp_path / "fresh")) == []
    assert Pack(out).info(0).num_frames == 45


@pytest.mark.parametrize("make", ["pack", "index"])
def test_overwriting_beside_a_running_pack_is_refused(tmp_path, film, make):
    """Its lock is held until the folder has another name; the running pack ends undisturbed."""
    long, other = film(tmp_path / "long.mp4", frames=2500), film(tmp_path / "b.mp4", frames=20)
    out = tmp_path / "pack"
    command = [sys.executable, "-c", CODE, str(out), str(long)]
    with subprocess.Popen(command) as process:
        while not list(out.glob(".staging/*/0*.tmp")) and process.poll() is None:
            time.sleep(0.002)
        with pytest.raises(PackError, match="another process is packing into"):
            if make == "pack":
                write_pack(out, annotate([other]), PROFILE, workers=1, overwrite=True)
            else:
                index_videos(out, annotate([other]), workers=1, overwrite=True)
        assert process.poll() is None
        assert process.wait(timeout=120) == 0
    assert Pack(out).info(0).num_frames == 2500
    assert write_pack(out, annotate([other]), PROFILE, workers=1, overwrite=True).videos == 1
    assert Pack(out).info(0).num_frames == 20


def test_a_worker_that_outlived_its_run_leaves_nothing_in_another_pack(tmp_path, film, monkeypatch):
    """The run it worked for was overwritten by one of other settings: its part finds no place."""
    annotations, out = annotate([film(tmp_path / "a.mp4", frames=30)]), tmp_path / "pack"
    interrupted(out, annotations, monkeypatch)
    (old,) = (path for path in (out / ".staging").iterdir() if path.is_dir())
    job = Job(0, "a.mp4", annotations.videos[0].path, 1e18)
    shutil.rmtree(out)
    other = make_profile(preset="ultrafast", stride=2)

    def outlive(_) -> None:
        told = os.open(os.devnull, os.O_WRONLY)
        with pytest.raises(FileNotFoundError):
            EncodeJob(str(old), PROFILE, told)((0, job))
        os.close(told)

    write_pack(out, annotations, other, workers=1, on_progress=outlive)
    write_pack(tmp_path / "fresh", annotations, other, workers=1)
    assert differing(tree(out), tree(tmp_path / "fresh")) == []


def test_a_folder_replaced_between_opening_and_locking_is_not_worked_in(tmp_path):
    """The lock is then one of a folder that has gone."""
    staging = tmp_path / "pack" / ".staging"
    staging.mkdir(parents=True)
    locks = Locks(staging, None)
    locks.check()
    (tmp_path / "pack").rename(tmp_path / "going")
    with pytest.raises(PackError, match="run the command again"):
        locks.check()
    staging.mkdir(parents=True)
    (staging / "lock").touch()
    with pytest.raises(PackError, match="run the command again"):
        locks.check()
    locks.close()


def test_an_unfinished_pack_is_not_opened_and_says_how_to_go_on(tmp_path, films, monkeypatch):
    interrupted(tmp_path / "pack", annotate(films[:2]), monkeypatch)
    with pytest.raises(PackError, match="run the same"):
        Pack(tmp_path / "pack")


def test_an_unfinished_pack_of_other_settings_is_kept(tmp_path, films, monkeypatch):
    """PackError, and what was encoded is still there; --overwrite starts anew."""
    out = tmp_path / "pack"
    interrupted(out, annotate(films[:2]), monkeypatch)
    before = tree(out)
    other = make_profile(preset="ultrafast", stride=2)
    with pytest.raises(PackError, match="--overwrite"):
        write_pack(out, annotate(films[:2]), other, workers=1)
    assert differing(tree(out), before) == []
    assert write_pack(out, annotate(films[:2]), other, workers=1, overwrite=True).resumed == 0
