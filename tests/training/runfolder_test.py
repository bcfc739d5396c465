"""The run folder: sessions and their environment, rows, checkpoints of older runs."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from matinee.errors import ConfigError, MatineeError
from matinee.training.config import DataConfig, RunConfig, TrainConfig
from matinee.training.state.checkpoints import DamagedCheckpoint
from matinee.training.state.environment import describe_environment, describe_git
from matinee.training.state.runfolder import RunFolder


def settings(out: Path) -> TrainConfig:
    return TrainConfig(data=DataConfig(path="a.pack"), run=RunConfig(out=str(out)))


def state(step: int) -> dict:
    return {
        "state": {"step": step, "model": {"w": torch.full((5,), float(step))}},
        "vocabulary": {"classes": []},
    }


@pytest.fixture
def run(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create(settings(folder.path))
    return folder


# Checkpoints


def test_a_run_of_one_plain_file_goes_on(tmp_path):
    """Runs once had a last.pt alone; it is read, and stays until the next save replaces it."""
    run = RunFolder(tmp_path)
    torch.save(state(5), run.checkpoint_file)
    assert run.checkpoint_step() == 5 and run.load_checkpoint()["state"]["step"] == 5
    run.resume(5, validated=True)
    assert run.checkpoint_file.is_file() and not run.checkpoint_file.is_symlink()
    run.save_checkpoint(state(7))
    assert run.checkpoint_file.is_symlink() and run.checkpoint_step() == 7
    assert torch.load(run.checkpoint_file, weights_only=True)["state"]["step"] == 7


@pytest.mark.parametrize("own", [1, 2, 9])
def test_a_plain_last_beside_the_folder_counts_by_its_step(run, own):
    """As a copy that follows links leaves it (2), or an interrupted first save (1), or an older
    version that trained on (9)."""
    run.save_checkpoint(state(1))
    run.save_checkpoint(state(2))
    run.checkpoint_file.unlink()
    torch.save(state(own), run.checkpoint_file)
    newest = max(own, 2)
    assert run.checkpoint_step() == newest
    assert run.load_checkpoint()["state"]["step"] == newest


def test_a_plain_last_that_is_damaged_is_named(tmp_path):
    run = RunFolder(tmp_path)
    torch.save(state(5), run.checkpoint_file)
    run.checkpoint_file.write_bytes(run.checkpoint_file.read_bytes()[:500])
    for read in (run.load_checkpoint, run.checkpoint_step):
        with pytest.raises(MatineeError, match=r"last\.pt is damaged"):
            read()


def test_a_damaged_checkpoint_warns_whoever_loads_the_run(run):
    """The file, and the step that stands in."""
    run.save_checkpoint(state(1))
    run.save_checkpoint(state(2))
    run.checkpoint_file.write_bytes(b"")  # through the link
    with pytest.warns(DamagedCheckpoint, match=r"step-00000002\.pt is damaged .* step 1 "):
        assert run.load_checkpoint()["state"]["step"] == 1


def test_the_step_is_told_without_reading_the_checkpoint(run):
    """It may be gigabytes."""
    run.save_checkpoint(state(3))
    run.checkpoint_file.write_bytes(b"")
    assert run.checkpoint_step() == 3


def test_a_save_is_on_disk_when_it_returns_unless_it_should_not_wait(run):
    run.save_checkpoint(state(3), best=True)
    assert run.load_checkpoint("best")["state"]["step"] == 3
    run.save_checkpoint(state(4), wait=False)
    run.checkpoints.wait()
    assert run.checkpoint_step() == 4 and run.load_checkpoint("best")["state"]["step"] == 3


def test_more_checkpoints_stay_on_request(tmp_path):
    run = RunFolder(tmp_path, keep=3)
    run.create(settings(tmp_path))
    for step in range(1, 6):
        run.save_checkpoint(state(step))
    assert run.checkpoints.steps() == [3, 4, 5]


@pytest.mark.parametrize("left", ["checkpoints", "last.pt"])
def test_checkpoints_without_settings_are_not_overwritten(run, left):
    run.save_checkpoint(state(3))
    run.config_file.unlink()
    if left == "last.pt":
        data = run.checkpoint_file.read_bytes()
        run.checkpoints.file(3).unlink()
        run.checkpoint_file.unlink()
        run.checkpoint_file.write_bytes(data)
    with pytest.raises(ConfigError, match=r"holds checkpoints but no config\.json"):
        run.create(settings(run.path))
    assert run.checkpoint_step() == 3


# Rows


def test_a_line_that_a_kill_cut_short_is_left_out(run):
    """At every length; and a resumed run writes after the whole lines."""
    run.log(kind="train", step=1, loss=float("nan"), name="☃\n\u2028")
    run.log(kind="val", step=1, top1=0.5)
    whole = run.metrics_file.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(len(whole) + 1):
        run.metrics_file.write_bytes(whole[:length])
        kinds = [row["kind"] for row in run.rows()]
        assert kinds == ["train", "val"][: (length >= first) + (length == len(whole))]
    run.metrics_file.write_bytes(whole[:-4])
    run.rewind(1, validated=True)
    run.log(kind="train", step=2)
    assert [(row["kind"], row["step"]) for row in run.rows()] == [("train", 1), ("train", 2)]


def test_a_damaged_line_in_the_middle_is_named(run):
    """Not dropped with all that follows, nor joined with its neighbour."""
    for bad in ('{"kind": "tra', '{"a": 1', "\x00\x00"):
        run.metrics_file.write_text(f'{{"step": 1}}\n{bad}\n"b": 2}}\n{{"step": 3}}\n')
        with pytest.raises(ConfigError, match=r"metrics\.jsonl is damaged in line 2 "):
            run.rows()


def test_rewinding_keeps_the_rows_up_to_the_checkpoint(run):
    """Byte for byte. An unvalidated checkpoint's own validation is written again."""
    rows = [(kind, step) for step in (2, 4, 6) for kind in ("train", "val")]
    lines = []
    for kind, step in rows:
        run.log(kind=kind, step=step, value=1e-30 / 3)
        lines.append(run.metrics_file.read_text().splitlines(keepends=True)[-1])
    run.rewind(6, validated=True)
    assert run.metrics_file.read_text() == "".join(lines)
    run.rewind(4, validated=True)
    assert run.metrics_file.read_text() == "".join(lines[:4])
    run.rewind(4, validated=False)
    assert run.metrics_file.read_text() == "".join(lines[:3])
    run.rewind(0, validated=False)
    assert run.metrics_file.read_text() == "" and run.rows() == []


def test_a_full_disk_names_the_metrics(run, monkeypatch):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *exc):
            return None

        def write(self, text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "open", lambda self, *args, **kwargs: Full())
    with pytest.raises(OSError, match="No space left") as error:
        run.log(kind="train", step=1)
    assert error.value.filename == str(run.metrics_file)


# Sessions


def test_each_session_of_a_run_is_written_down(run, monkeypatch):
    """The first where it always was; the others after it, each with the step it began at."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    run.save_checkpoint(state(3))
    run.resume(3, validated=True)
    monkeypatch.setenv("SLURM_JOB_ID", "18")
    run.resume(3, validated=True)
    held = json.loads(run.environment_file.read_text())
    assert held["torch"] == torch.__version__ and held["command"] == sys.argv
    first, *others = run.sessions()
    assert first == {name: value for name, value in held.items() if name != "resumed"}
    assert [(s["step"], s["launcher"]["SLURM_JOB_ID"]) for s in others] == [(3, "17"), (3, "18")]


def test_sessions_of_older_runs_are_continued(tmp_path):
    """Without a list, or without the file at all."""
    run = RunFolder(tmp_path)
    old = {"torch": "2.6.0", "gpu": None, "command": ["matinee", "train"]}
    run.environment_file.write_text(json.dumps(old))
    assert run.sessions() == [old]
    run.resume(0, validated=False)
    assert run.sessions()[0] == old and len(run.sessions()) == 2
    run.environment_file.unlink()
    assert run.sessions() == []
    run.resume(0, validated=False)
    assert run.sessions()[1]["step"] == 0
    run.environment_file.write_text("[1]")
    with pytest.raises(ConfigError, match=r"environment\.json is damaged"):
        run.resume(0, validated=False)


def test_the_environment_names_no_host(monkeypatch):
    for name in (
        "SLURM_JOB_NODELIST",
        "SLURMD_NODENAME",
        "MASTER_ADDR",
        "HOSTNAME",
        "WANDB_API_KEY",
    ):
        monkeypatch.setenv(name, "secret-17")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    found = describe_environment()
    assert "secret-17" not in json.dumps(found) and os.uname().nodename not in found["platform"]
    assert found["launcher"]["TORCHELASTIC_RESTART_COUNT"] == "2"
    assert found["packages"]["numpy"] == __import__("numpy").__version__


def git(folder: Path, *args: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_state_of_the_repository_is_told(tmp_path):
    """Against git's own plumbing, from the first commit to a detached head."""
    git(tmp_path, "init", "-b", "main")
    assert describe_git(tmp_path) == {"commit": None, "branch": "main", "dirty": False}
    (tmp_path / "# a").write_text("1")
    git(tmp_path, "add", ".")
    assert describe_git(tmp_path)["dirty"]
    git(tmp_path, "commit", "-m", "one")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert describe_git(tmp_path) == {"commit": head, "branch": "main", "dirty": False}
    git(tmp_path, "config", "status.showStash", "true")
    (tmp_path / "# a").write_text("0")
    git(tmp_path, "stash")
    (tmp_path / "unknown to git").write_text("1")
    assert not describe_git(tmp_path)["dirty"]
    (tmp_path / "# a").write_text("2")
    git(tmp_path, "checkout", "--detach")
    (tmp_path / "inner").mkdir()
    assert describe_git(tmp_path / "inner") == {"commit": head, "branch": None, "dirty": True}


def test_a_repository_cannot_run_programs_through_its_settings(tmp_path):
    """`core.fsmonitor` names one, which `git status` would start."""
    git(tmp_path, "init")
    (tmp_path / "monitor").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "monitor").chmod(0o755)
    git(tmp_path, "config", "core.fsmonitor", str(tmp_path / "monitor"))
    assert describe_git(tmp_path) is not None and not (tmp_path / "ran").exists()
    git(tmp_path, "status")
    assert (tmp_path / "ran").exists()  # the trap works


def test_git_never_stands_in_the_way(tmp_path, monkeypatch):
    """No repository, no git, a git that fails, one that hangs."""
    assert describe_git(tmp_path) is None
    git_file = tmp_path / "bin" / "git"
    git_file.parent.mkdir()
    monkeypatch.setenv("PATH", str(git_file.parent))
    assert describe_git(tmp_path) is None
    for script in ("exit 3", "printf '# branch.oid \\377\\n# \\n'", "exec /bin/sleep 60"):
        git_file.write_text(f"#!/bin/sh\n{script}\n")
        git_file.chmod(0o755)
        found = describe_git(tmp_path)
        assert found is None or found["branch"] is None
