"""Shares of the work, done by other runs, make the pack that one run makes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from matinee.errors import ConfigError, PackError
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.profiles import make_profile
from matinee.pack.writing.finish import PackReport
from matinee.pack.writing.writer import ShareReport, write_pack, write_share

PROFILE = make_profile(preset="ultrafast", chunk_seconds=1.0)


def annotate(paths: list[Path]) -> Annotations:
    videos = tuple(VideoFile(path.name, path) for path in paths)
    samples = tuple(Sample(v.id, v.id, label="a", split="train") for v in videos)
    return Annotations(videos, samples)


def tree(out: Path) -> dict[str, int]:
    return {str(p.relative_to(out)): hash(p.read_bytes()) for p in out.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def films(tmp_path_factory, film) -> list[Path]:
    """Seven films and a file that is none."""
    root = tmp_path_factory.mktemp("films")
    paths = [film(root / f"{n}.mp4", frames=20 + n, seed=n) for n in range(7)]
    (root / "bad.mp4").write_bytes(b"nothing")
    return [*paths, root / "bad.mp4"]


@pytest.fixture(scope="module")
def by_one(tmp_path_factory, films) -> dict[str, int]:
    out = tmp_path_factory.mktemp("one") / "pack"
    write_pack(out, annotate(films), PROFILE, workers=1)
    return tree(out)


def test_shares_in_any_order_merge_into_the_pack_of_one_run(tmp_path, films, by_one):
    """Each share encodes its own videos only; merging encodes none."""
    out, annotations = tmp_path / "pack", annotate(films)
    for i in (3, 1, 2):
        report = write_share(out, annotations, PROFILE, (i, 3), workers=1)
        assert isinstance(report, ShareReport)
        assert (report.videos, report.done) == (len(range(i - 1, 8, 3)), 0)
    parts = {p.name: p.stat().st_mtime_ns for p in (out / ".staging").glob("*/0*.json")}
    assert len(parts) == 8
    report = write_pack(out, annotations, PROFILE, merge=True)
    assert report.resumed == 8 and report.realtime_factor == 0
    assert tree(out) == by_one
    again = write_share(out, annotations, PROFILE, (1, 3), workers=1)
    assert isinstance(again, PackReport) and again.was_complete


def test_merging_names_what_is_missing_and_changes_nothing(tmp_path, films):
    """A share that was not run, and a file that changed since."""
    out, annotations = tmp_path / "pack", annotate(films)
    write_share(out, annotations, PROFILE, (1, 2), workers=1)
    before = tree(out)
    with pytest.raises(PackError, match=r"4 of 8 videos are not packed .*1\.mp4, .*3\.mp4"):
        write_pack(out, annotations, PROFILE, merge=True)
    assert tree(out) == before


def test_a_share_continues_where_it_stopped(tmp_path, films, by_one):
    """Run twice, the second finds everything done; a plain run then ends the pack."""
    out, annotations = tmp_path / "pack", annotate(films)

    def stop(progress) -> None:
        if progress.videos == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_share(out, annotations, PROFILE, (2, 2), workers=1, on_progress=stop)
    report = write_share(out, annotations, PROFILE, (2, 2), workers=1)
    assert report.videos == 4 and 2 <= report.done < 4
    assert write_share(out, annotations, PROFILE, (2, 2), workers=1).done == 4
    assert write_pack(out, annotations, PROFILE, workers=1).resumed == 4
    assert tree(out) == by_one


CODE = """
import sys
from pathlib import Path
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.profiles import make_profile
from matinee.pack.writing.writer import write_share
out, share, *paths = sys.argv[1:]
videos = tuple(VideoFile(Path(p).name, Path(p)) for p in paths)
samples = tuple(Sample(v.id, v.id, label="a", split="train") for v in videos)
profile = make_profile(preset="ultrafast", chunk_seconds=1.0)
write_share(out, Annotations(videos, samples), profile, (int(share), 2), workers=1)
"""


def test_two_shares_at_once_are_safe(tmp_path, films, by_one):
    """Two processes begin together in an empty folder."""
    out = tmp_path / "pack"
    running = [
        subprocess.Popen([sys.executable, "-c", CODE, str(out), i, *map(str, films)])
        for i in ("1", "2")
    ]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    write_pack(out, annotate(films), PROFILE, merge=True)
    assert tree(out) == by_one


def test_a_share_that_is_at_work_is_not_done_twice_nor_merged(tmp_path, films, film):
    """The same share again, the whole, and the merge are refused; another share is not."""
    out = tmp_path / "pack"
    long = [film(tmp_path / "long.mp4", frames=2500), *films]
    annotations = annotate(long)
    command = [sys.executable, "-c", CODE, str(out), "1", *map(str, long)]
    with subprocess.Popen(command) as process:
        while not list((out / ".staging").glob("*/000000.*.tmp")) and process.poll() is None:
            time.sleep(0.002)
        with pytest.raises(PackError, match="another process"):
            write_share(out, annotations, PROFILE, (1, 2), workers=1)
        for merge in (True, False):
            with pytest.raises(PackError, match="another process"):
                write_pack(out, annotations, PROFILE, merge=merge, workers=1)
        assert process.poll() is None
        assert write_share(out, annotations, PROFILE, (2, 2), workers=1).videos == 4
        assert list((out / ".staging").glob("*/000000.*")), "the other share's file was deleted"
        process.kill()


def test_shares_of_another_number_are_refused_and_touch_nothing(tmp_path, films, film):
    """While one is at work, whose files would be theirs, and afterwards; the whole is not."""
    out = tmp_path / "pack"
    long = [film(tmp_path / "long.mp4", frames=2500), *films]
    command = [sys.executable, "-c", CODE, str(out), "1", *map(str, long)]
    with subprocess.Popen(command) as process:
        while not list((out / ".staging").glob("*/000000.*.tmp")) and process.poll() is None:
            time.sleep(0.002)
        with pytest.raises(PackError, match=r"2 shares, not 3: give --shard i/2") as error:
            write_share(out, annotate(long), PROFILE, (1, 3), workers=1)
        assert "\n" not in str(error.value)
        assert process.poll() is None
        assert list((out / ".staging").glob("*/000000.*")), "the other share's file was deleted"
        process.kill()
    with pytest.raises(PackError, match="2 shares"):
        write_share(out, annotate(long), PROFILE, (2, 3), workers=1)


def test_a_whole_run_that_stopped_may_be_ended_in_shares(tmp_path, films, by_one):
    """It was in no shares: any number may follow."""
    out, annotations = tmp_path / "pack", annotate(films)

    def stop(progress) -> None:
        if progress.videos == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pack(out, annotations, PROFILE, workers=1, on_progress=stop)
    for i in (1, 2, 3):
        write_share(out, annotations, PROFILE, (i, 3), workers=1)
    write_pack(out, annotations, PROFILE, merge=True)
    assert tree(out) == by_one


@pytest.mark.parametrize("share", [(0, 2), (3, 2), (1, 0)])
def test_a_share_that_does_not_exist_is_refused(tmp_path, films, share):
    with pytest.raises(ConfigError, match="--shard"):
        write_share(tmp_path / "pack", annotate(films), PROFILE, share)
    assert not (tmp_path / "pack").exists()
