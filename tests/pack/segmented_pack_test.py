"""A long video is encoded by many workers at once, and the pack is as one worker makes it."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import pytest

from matinee.errors import PackError
from matinee.media.packets import scan_packets
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.profiles import make_profile
from matinee.pack.reading.reader import Pack
from matinee.pack.writing import schedule
from matinee.pack.writing.encode_job import Begun, Encoded, Job, Refused, run_job
from matinee.pack.writing.writer import write_pack

PROFILE = make_profile(preset="ultrafast", chunk_seconds=1.0)
CODE = """
import sys
from pathlib import Path
from matinee.pack.writing import schedule
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.profiles import make_profile
from matinee.pack.writing.writer import write_pack
schedule.SEGMENT_SECONDS = 2.0
out, *paths = map(Path, sys.argv[1:])
videos = tuple(VideoFile(p.name, p) for p in paths)
samples = tuple(Sample(v.id, v.id, label="a", split="train") for v in videos)
profile = make_profile(preset="ultrafast", chunk_seconds=1.0)
write_pack(out, Annotations(videos, samples), profile, workers=2)
"""


def annotate(*paths: Path) -> Annotations:
    videos = tuple(VideoFile(path.name, path) for path in paths)
    samples = tuple(Sample(v.id, v.id, label="a", split="train") for v in videos)
    return Annotations(videos, samples)


def differing(a: Path, b: Path) -> list[str]:
    """Names of files that differ; pytest would spend minutes on a diff of bytes."""
    trees = [
        {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        for root in (a, b)
    ]
    return sorted(n for n in trees[0] | trees[1] if trees[0].get(n) != trees[1].get(n))


def write(out: Path, annotations: Annotations, monkeypatch, seconds: float, **more):
    with monkeypatch.context() as patch:
        patch.setattr(schedule, "SEGMENT_SECONDS", seconds)
        return write_pack(out, annotations, PROFILE, **{"workers": 2, **more})


@pytest.fixture(scope="module")
def long_films(tmp_path_factory, film) -> list[Path]:
    """Even and uneven times, a short one, and one whose keys cannot be started from."""
    root, rng = tmp_path_factory.mktemp("long"), random.Random(3)
    times = [rng.randrange(3) for _ in range(320)]
    times = [40 * n + 13 * sum(times[:n]) for n in range(320)]
    gop = {"preset": "ultrafast", "g": "30", "bf": "2"}
    return [
        film(root / "even.mp4", frames=330, options=gop),
        film(root / "uneven.mkv", frames=320, options=gop, times=times,
             time_base=Fraction(1, 1000), seed=1),
        film(root / "short.mp4", frames=20, seed=2),
        film(root / "open.mp4", frames=150, seed=3,
             options={"preset": "ultrafast", "x264-params": "open-gop=1:keyint=30:bframes=2"}),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def at_once(tmp_path_factory, long_films) -> Path:
    """Every video by one worker from beginning to end."""
    out = tmp_path_factory.mktemp("once") / "pack"
    with pytest.MonkeyPatch.context() as patch:
        write(out, annotate(*long_films), patch, 1e18)
    return out


def test_segments_make_the_same_pack_byte_for_byte(tmp_path, long_films, at_once, monkeypatch):
    """Also those of uneven times; a video that cannot be cut is named with the reason."""
    names: set[str] = set()
    out = tmp_path / "pack"

    def look(_) -> None:
        names.update(path.name for path in (out / ".staging").glob("*/*-*.json"))

    report = write(out, annotate(*long_films), monkeypatch, 2.0, on_progress=look)
    assert sum(name.startswith("000000-") for name in names) >= 4
    assert sum(name.startswith("000001-") for name in names) >= 4
    assert differing(out, at_once) == []
    ((path, why),) = report.uncut
    assert path.endswith("open.mp4") and "keyframes" in why


def test_a_long_video_killed_in_the_middle_continues_with_its_segments(
    tmp_path, long_films, at_once, monkeypatch
):
    """kill -9 of the run and its workers; segments that were done are not encoded again."""
    out = tmp_path / "pack"
    command = [sys.executable, "-c", CODE, str(out), *map(str, long_films)]
    for wanted in (1, 3):
        with subprocess.Popen(command) as process:
            while process.poll() is None:
                if len(list(out.glob(".staging/*/00000?-*.json"))) >= wanted:
                    break
                time.sleep(0.002)
            process.kill()
    kept = {p.name: p.stat().st_mtime_ns for p in out.glob(".staging/*/00000?-*.json")}
    assert len(kept) >= 3 and not (out / "pack.json").exists()
    seen: dict[str, int] = {}

    def look(_) -> None:
        for path in (out / ".staging").glob("*/00000?-*.json"):
            seen[path.name] = path.stat().st_mtime_ns

    write(out, annotate(*long_films), monkeypatch, 2.0, on_progress=look)
    assert {name: seen[name] for name in kept} == kept
    assert differing(out, at_once) == []


@pytest.fixture(scope="module")
def uncut_film(tmp_path_factory, film) -> Path:
    """94 chunks; no keyframe can be started from, so one job packs it."""
    options = {"preset": "ultrafast", "x264-params": "open-gop=1:keyint=30:bframes=2"}
    return film(tmp_path_factory.mktemp("uncut") / "open.mp4", frames=2990, options=options)


@pytest.fixture(scope="module")
def uncut_pack(tmp_path_factory, uncut_film) -> Path:
    out = tmp_path_factory.mktemp("uncut") / "pack"
    write_pack(out, annotate(uncut_film), PROFILE, workers=1)
    return out


def kill_at(out: Path, path: Path, chunks: int, *, workers: bool = True) -> int:
    """kill -9 a run when so many chunks are listed; how many are when its workers have ended."""

    def listed() -> int:
        lists = out.glob(".staging/*/000000.*.list")
        return max((p.read_bytes().count(b"\n") for p in lists), default=0)

    command = [sys.executable, "-c", CODE, str(out), str(path)]
    with subprocess.Popen(command) as process:
        while process.poll() is None and listed() < chunks:
            time.sleep(0.002)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        pids = [int(pid) for pid in children.split()]
        for pid in (process.pid, *(pids if workers else [])):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            while Path(f"/proc/{pid}/cmdline").read_bytes():  # nothing once it has ended
                time.sleep(0.002)
    assert not (out / "pack.json").exists()
    return listed()


def go_on(out: Path, path: Path, monkeypatch) -> int:
    """Run again; how many chunks were not encoded, for progress counts those that are."""
    told = []
    report = write(out, annotate(path), monkeypatch, 2.0, workers=1, on_progress=told.append)
    assert "keyframes" in report.uncut[0][1]
    return report.chunks - told[-1].chunks


@pytest.mark.parametrize("workers", [True, False], ids=["with its workers", "the run alone"])
def test_an_uncut_video_killed_in_the_middle_continues_with_its_chunks(
    tmp_path, uncut_film, uncut_pack, monkeypatch, workers
):
    """kill -9 twice; only the chunks that were not there are encoded; the same bytes."""
    out = tmp_path / "pack"
    first = kill_at(out, uncut_film, 3, workers=workers)
    assert first >= 3
    kept = kill_at(out, uncut_film, first + 3, workers=workers)
    assert first + 3 <= kept < 94
    assert go_on(out, uncut_film, monkeypatch) == kept
    assert differing(out, uncut_pack) == []


@pytest.mark.parametrize("damage", ["cut off", "a byte", "a torn list", "all lost"])
def test_chunks_that_are_not_whole_are_encoded_again(
    tmp_path, uncut_film, uncut_pack, monkeypatch, damage
):
    """As a power cut leaves them: what is sound before the damage is taken, nothing after it."""
    out = tmp_path / "pack"
    kept = kill_at(out, uncut_film, 6)
    (tar,) = out.glob(".staging/*/000000.*.tmp")
    rows, sound = tar.with_suffix(".list").read_bytes().splitlines(keepends=True), 5
    end = json.loads(rows[4])["end"]
    if damage == "cut off":
        os.truncate(tar, end + 700)
    elif damage == "a byte":
        data = bytearray(tar.read_bytes())
        data[end + 700] ^= 1
        tar.write_bytes(data)
    elif damage == "a torn list":
        tar.with_suffix(".list").write_bytes(b"".join(rows[:5]) + rows[5][:40])
    else:
        tar.unlink()
        sound = 0
    assert kept > sound
    assert go_on(out, uncut_film, monkeypatch) == sound
    assert differing(out, uncut_pack) == []


def test_chunks_of_a_film_that_changed_are_not_taken(tmp_path, uncut_film, film, monkeypatch):
    """Another film of the same kind under the name: the pack is one of that film alone."""
    path, out = tmp_path / "open.mp4", tmp_path / "pack"
    shutil.copyfile(uncut_film, path)
    kill_at(out, path, 6)
    options = {"preset": "ultrafast", "x264-params": "open-gop=1:keyint=30:bframes=2"}
    film(path, frames=500, options=options, seed=4)
    assert go_on(out, path, monkeypatch) == 0
    write(tmp_path / "fresh", annotate(path), monkeypatch, 2.0)
    assert differing(out, tmp_path / "fresh") == []


def test_damage_in_a_segment_is_refused_in_the_words_of_one_pass(tmp_path, film, monkeypatch):
    """And other lengths of segments that lie there from before are not mixed in."""
    good = film(tmp_path / "good.mp4", frames=40)
    options = {"preset": "ultrafast", "g": "25"}
    bad = film(tmp_path / "bad.mp4", frames=300, options=options, seed=1)
    table, data = scan_packets(bad).table, bytearray(bad.read_bytes())
    at, length = int(table.offset[201]), int(table.size[201])
    data[at + 4 : at + length] = b"\xa5" * (length - 4)
    bad.write_bytes(data)
    annotations = annotate(good, bad)
    cut = write(tmp_path / "cut", annotations, monkeypatch, 2.0)
    whole = write(tmp_path / "whole", annotations, monkeypatch, 1e18)
    assert cut.videos == 1 and cut.refused == whole.refused
    assert "damaged" in cut.refused[0].reason
    assert differing(tmp_path / "cut", tmp_path / "whole") == []


def test_a_crash_in_a_segment_refuses_the_video_and_packs_the_others(tmp_path, film, monkeypatch):
    """The process is ended by SIGSEGV while it is at a segment of the first film."""
    options = {"preset": "ultrafast", "g": "25"}
    paths = [
        film(tmp_path / f"{n}.mp4", frames=k, seed=n, options=options)
        for n, k in enumerate((600, 30))
    ]
    out, killed, main = tmp_path / "p", [], threading.get_native_id()

    def kill_once() -> None:
        while not list((out / ".staging").glob("*/000000-*.tmp")):
            time.sleep(0.001)
        children = Path(f"/proc/self/task/{main}/children").read_text()
        for pid in map(int, children.split()):
            if b"matinee.workers" in Path(f"/proc/{pid}/cmdline").read_bytes():
                killed.append(pid)
                os.kill(pid, signal.SIGSEGV)

    threading.Thread(target=kill_once, daemon=True).start()
    report = write(out, annotate(*paths), monkeypatch, 2.0, workers=1)
    assert len(killed) == 1
    assert report.videos == 1 and "SIGSEGV" in report.refused[0].reason
    assert "process" not in report.refused[0].reason, "its number would differ from run to run"


def test_segments_of_other_lengths_are_not_taken(tmp_path, long_films, at_once, monkeypatch):
    """A run with other segments, stopped: what fits is taken, the rest is encoded."""
    out = tmp_path / "pack"
    stopped = []

    def stop(_) -> None:
        if len(list((out / ".staging").glob("*/*-*.json"))) >= 3:
            stopped.append(True)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(out, annotate(*long_films), monkeypatch, 3.0, on_progress=stop)
    assert stopped
    write(out, annotate(*long_films), monkeypatch, 2.0)
    assert differing(out, at_once) == []


def test_a_changed_file_of_the_same_size_is_noticed_by_a_complete_pack(tmp_path, film):
    """And a copied data set, whose files have other times, is not taken for another."""
    path = film(tmp_path / "v" / "a.mp4", frames=30)
    write_pack(tmp_path / "pack", annotate(path), PROFILE, workers=1)
    copy = tmp_path / "copy" / "a.mp4"
    copy.parent.mkdir()
    shutil.copyfile(path, copy)
    os.utime(copy, (1, 1))
    assert write_pack(tmp_path / "pack", annotate(copy), PROFILE, workers=1).was_complete
    assert write_pack(tmp_path / "other", annotate(copy), PROFILE, workers=1).videos == 1
    assert differing(tmp_path / "pack", tmp_path / "other") == []
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(PackError, match="other videos"):
        write_pack(tmp_path / "pack", annotate(path), PROFILE, workers=1)


def test_a_file_that_grows_while_it_is_packed_is_refused(tmp_path, film):
    """A recording still going on: it grows between two chunks, wherever the encoder is by then."""
    path = film(tmp_path / "a.mkv", frames=50)
    job = Job(0, "a.mkv", path, segment_seconds=math.inf)
    items = run_job(job, PROFILE)
    assert isinstance(next(item for item in items if not isinstance(item, Begun)), Encoded)
    with path.open("ab") as file:
        file.write(b"\xec\x80")  # an empty EBML Void element
    *_, last = items
    assert isinstance(last, Refused) and last.reason == "changed while it was being packed"


def test_a_file_replaced_while_its_segments_are_packed_is_packed_as_it_is_now(
    tmp_path, film, monkeypatch
):
    """The pack of the new film, known by the new film's bytes: run again, it is complete."""
    gop = {"preset": "ultrafast", "g": "30"}
    path = film(tmp_path / "a.mp4", frames=600, options=gop)
    new = film(tmp_path / "new.mp4", frames=300, options=gop, seed=5)
    out, replaced = tmp_path / "pack", []

    def replace_it(_) -> None:
        if not replaced and list((out / ".staging").glob("*/000000-*.json")):
            shutil.copyfile(new, tmp_path / "copy")
            (tmp_path / "copy").replace(path)
            replaced.append(True)

    report = write(out, annotate(path), monkeypatch, 2.0, workers=1, on_progress=replace_it)
    assert replaced and "changed" in report.uncut[0][1]
    write(tmp_path / "fresh", annotate(path), monkeypatch, 2.0)
    assert Pack(out).info(0).num_frames == 300
    assert differing(out, tmp_path / "fresh") == []
    assert write(out, annotate(path), monkeypatch, 2.0).was_complete


@pytest.mark.parametrize("kind", ["hourly", "irregular hours", "one instant", "negative"])
def test_absurd_times_neither_loop_nor_fill_the_disk(tmp_path, film, kind, monkeypatch):
    """A frame an hour, all frames at once, times before zero: packed frame by frame, or refused."""
    hour = 3_600_000
    times = {
        "hourly": [hour * n for n in range(40)],
        "irregular hours": [hour * n + n * n * 70_000 for n in range(40)],
        "one instant": list(range(40)),
        "negative": [40 * n - 4000 for n in range(40)],
    }[kind]
    path = film(
        tmp_path / "a.mkv", frames=40, times=times, time_base=Fraction(1, 1000),
        options={"preset": "ultrafast", "bf": "0"},
    )  # fmt: skip
    try:
        report = write(tmp_path / "pack", annotate(path), monkeypatch, 2.0, workers=1)
    except PackError as error:
        assert "a.mkv" in str(error)
        return
    assert report.bytes < 4_000_000
    assert 40 <= Pack(tmp_path / "pack").info(0).num_frames <= 1400
