"""`matinee pack`: shards, merging, the cluster's flags, and what is told meanwhile."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from matinee.cli import main
from matinee.cli.pack_run import duration, share_of, telling
from matinee.errors import ConfigError
from matinee.pack.writing.schedule import Progress

FAST = ("--preset", "ultrafast", "--chunk-seconds", "1", "--val-fraction", "0", "--workers", "1")


@pytest.fixture(scope="module")
def films(tmp_path_factory, film) -> Path:
    root = tmp_path_factory.mktemp("films")
    for number in range(3):
        film(root / "a" / f"{number}.mp4", frames=30, seed=number)
    return root


def tree(out: Path) -> dict[str, int]:
    return {str(p.relative_to(out)): hash(p.read_bytes()) for p in out.rglob("*") if p.is_file()}


def test_shards_and_merge_make_the_pack_of_one_command(tmp_path, films, capsys):
    """Each tells what it did; --json holds the speed of each."""
    one, many, told = tmp_path / "one", tmp_path / "many", tmp_path / "told.json"
    assert main(["pack", str(films), "--out", str(one), "--json", str(told), *FAST]) == 0
    assert json.loads(told.read_text())["realtime_factor"] > 0
    shared = ["pack", str(films), "--out", str(many), *FAST]
    assert main([*shared, "--shard", "2/2", "--json", str(told)]) == 0
    assert json.loads(told.read_text())["shard"] == "2/2"
    assert main([*shared, "--merge"]) == 2
    assert "2 of 3 videos are not packed" in capsys.readouterr().err
    assert main([*shared, "--shard", "1/2"]) == 0
    assert "--merge" in capsys.readouterr().out
    assert main([*shared, "--merge"]) == 0
    assert tree(one) == tree(many)


@pytest.mark.parametrize(
    "flags",
    [
        ("--shard", "3/2"), ("--shard", "0/2"), ("--shard", "half"), ("--shard", "1/2", "--merge"),
        ("--shard", "1/2", "--overwrite"), ("--ray-address", "auto"),
    ],
)  # fmt: skip
def test_flags_that_contradict_are_refused_before_any_work(tmp_path, films, capsys, flags):
    """Status 2 and one line that names the flag."""
    assert main(["pack", str(films), "--out", str(tmp_path / "p"), *FAST, *flags]) == 2
    assert flags[0] in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "p").exists()


def test_ctrl_c_ends_cleanly_and_says_that_the_command_continues(tmp_path, film):
    """SIGINT in the middle of a long video: status 130, no worker left, parts kept."""
    path = film(tmp_path / "v" / "a" / "long.mp4", frames=1200, options={"preset": "ultrafast"})
    out = tmp_path / "pack"
    command = [sys.executable, "-m", "matinee", "pack", str(path.parents[1]), "--out", str(out)]
    with subprocess.Popen([*command, *FAST], stderr=subprocess.PIPE, text=True) as process:
        while not list(out.glob(".staging/*/000000.*.tmp")) and process.poll() is None:
            time.sleep(0.005)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command continues" in told and "Traceback" not in told
    assert children and not any(Path(f"/proc/{child}").exists() for child in children)
    assert not (out / "pack.json").exists() and (out / ".staging").is_dir()


def test_progress_is_told_in_seconds_of_video():
    """So the bar of one long video moves; before anything is known it stands at none of one."""
    steps = []
    tell = telling(lambda *step: steps.append(step))
    tell(Progress(0, 3, 0, 0.0, None, 0.0, None))
    tell(Progress(1, 3, 17, 255.0, 1000.4, 12.34, 6000.0))
    assert steps == [
        (0, 1, "s of video; 0 of 3 videos"),
        (255, 1000, "s of video; 1 of 3 videos, 17 chunks, 12.3x real time, 1 h 40 min left"),
    ]
    assert [duration(s) for s in (12.4, 180, 19_200)] == ["12 s", "3 min", "5 h 20 min"]


def test_a_shard_is_written_i_of_n():
    assert share_of("3/16") == (3, 16)
    for wrong in ("", "3", "3/", "/3", "-1/3", "4/3", "1/3 ", "1.0/3"):
        with pytest.raises(ConfigError, match="--shard"):
            share_of(wrong)
