"""Starting ranks: what they are told, how signals reach them, what their end means."""

from __future__ import annotations

import json
import os
import pty
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from matinee.errors import ConfigError
from matinee.training.parallel import agent
from matinee.training.parallel.environment import RankEnvironment
from matinee.training.parallel.launch import check_gpus, launch

# Stand-ins for `matinee train` that start at once, for they import nothing.
HEAD = """
import json, os, signal, sys, time
from pathlib import Path
rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
here = Path(__file__).parent
def sleep(): time.sleep(60); sys.exit(99)
def wait_for(name):
    while not (here / name).exists(): time.sleep(0.02)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a program as ranks in a clean environment; what is behind HEAD decides what they do."""
    for name in ("OMP_NUM_THREADS", "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(agent, "_GRACE_S", 0.2)  # none of these ranks ends by itself

    def start(body: str, *args: str, processes: int = 2, max_restarts: int = 0) -> int:
        script = tmp_path / "rank.py"
        script.write_text(HEAD + body)
        before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
        environ = dict(os.environ)
        status = launch(args, processes=processes, max_restarts=max_restarts, program=[str(script)])
        assert {s: signal.getsignal(s) for s in before} == before
        assert dict(os.environ) == environ
        return status

    return start


def test_ranks_get_their_arguments_as_they_are_and_torchruns_variables(run, tmp_path):
    args = ["--data", "a b", "$HOME ${local_rank} $$", "--x='\"\n", "", "é"]
    status = run(
        '(here / f"told{rank}").write_text(json.dumps([dict(os.environ), sys.argv[1:]]))', *args,
        processes=3,
    )  # fmt: skip
    assert status == 0
    for rank in range(3):
        environ, argv = json.loads((tmp_path / f"told{rank}").read_text())
        assert argv == args
        read = RankEnvironment.read(environ)
        assert (read.rank, read.world, read.local_rank, read.local_world) == (rank, 3, rank, 3)
        assert (read.nodes, read.restarts, read.launched_by) == (1, 0, "torchrun")
        cores = len(os.sched_getaffinity(0))
        assert environ["OMP_NUM_THREADS"] == str(max(1, cores // 3))


def test_modules_of_the_current_folder_do_not_shadow_the_ranks_own(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit(55)")
    monkeypatch.chdir(tmp_path)
    assert launch([], processes=1, program=["-c", "import json, matinee.errors"]) == 0


def test_rank_0_speaks_and_of_the_others_only_errors_are_heard(run, capfd):
    assert run('print("out", rank); print("err", rank, file=sys.stderr)', processes=3) == 0
    out, err = capfd.readouterr()
    assert out == "out 0\n"
    assert sorted(err.splitlines()) == ["err 0", "err 1", "err 2"]


@pytest.mark.parametrize("failing", [0, 1])
def test_first_rank_to_fail_gives_the_status_and_ends_the_others(run, capfd, failing):
    assert run(f"sys.exit(7) if rank == {failing} else sleep()") == 7
    assert capfd.readouterr() == ("", "")  # not a word of torchrun's


def test_rank_that_is_killed_is_named(run, capfd):
    assert run("os.kill(os.getpid(), 9) if rank == 1 else sleep()") == 128 + 9
    assert capfd.readouterr().err == (
        "matinee train: rank 1 was ended by SIGKILL (often: out of memory)\n"
    )


def test_rank_that_was_killed_explains_the_errors_of_the_others(run, capfd):
    body = """
if rank == 0:
    (here / "pid.new").write_text(str(os.getpid())); os.rename(here / "pid.new", here / "pid")
    time.sleep(0.1); os.kill(os.getpid(), 9)
wait_for("pid")
stat = Path("/proc", (here / "pid").read_text(), "stat")
while stat.read_text().split()[2] != "Z": pass
sys.exit(5)
"""
    assert run(body, max_restarts=0) == 128 + 9
    assert "rank 0 was ended by SIGKILL" in capfd.readouterr().err


def test_no_process_is_left_behind(run, tmp_path):
    body = """
import subprocess
if rank == 0:
    # Decoders leave SIGTERM to their rank.
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    decoder = subprocess.Popen([sys.executable, "-c", code])
    (here / "pids").write_text(f"{os.getpid()} {decoder.pid}")
    sleep()
wait_for("pids"); sys.exit(7)
"""
    assert run(body) == 7
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        # What init has not collected yet is a zombie.
        stat = Path(f"/proc/{pid}/stat")
        assert not stat.exists() or stat.read_text().split()[2] == "Z"


STOPPING = """
got = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: got.append(number))
(here / f"ready{rank}").touch()
wait_for("ready0"); wait_for("ready1")
if rank == 0: os.kill(os.getppid(), SENT)
while not got: time.sleep(0.02)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signal_reaches_each_rank_once_and_who_still_saves_is_left_alone(run, tmp_path, sent):
    # Rank 1 ends at once, with a status; torchrun would take that for a failure and end rank 0.
    body = (
        STOPPING.replace("SENT", str(int(sent)))
        + """
if rank == 0:
    time.sleep(1.0)
    (here / "got").write_text(json.dumps(got))
sys.exit(128 + got[0])
"""
    )
    assert run(body, max_restarts=3) == 128 + sent
    assert json.loads((tmp_path / "got").read_text()) == [sent]


def test_closed_terminal_saves_as_sigterm_does(run, tmp_path):
    body = (
        STOPPING.replace("SENT", str(int(signal.SIGHUP)))
        + """
(here / f"got{rank}").write_text(json.dumps(got)); sys.exit(128 + got[0])
"""
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have it ignored
    try:
        assert run(body) == 128 + signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)
    assert json.loads((tmp_path / "got0").read_text()) == [signal.SIGTERM]


def test_run_that_is_done_when_the_signal_comes_ends_well(run):
    assert run(STOPPING.replace("SENT", str(int(signal.SIGTERM)))) == 0


def test_second_ctrl_c_ends_ranks_that_do_not_listen(run):
    body = (
        STOPPING.replace("SENT", str(int(signal.SIGINT)))
        + """
if rank == 0: os.kill(os.getppid(), signal.SIGINT)
sleep()
"""
    )
    assert run(body) == 128 + signal.SIGINT


def test_error_while_saving_is_the_status(run):
    body = STOPPING.replace("SENT", str(int(signal.SIGUSR1))) + "sys.exit(2 if rank else 138)"
    assert run(body, max_restarts=3) == 2


def test_ranks_start_again_after_one_is_killed(run, tmp_path, capfd):
    body = """
(here / f"seen{rank}-{restart}").touch()
if restart == 0: os.kill(os.getpid(), 9) if rank == 1 else sleep()
"""
    assert run(body, max_restarts=1) == 0
    seen = {path.name for path in tmp_path.glob("seen*")}
    assert seen == {"seen0-0", "seen1-0", "seen0-1", "seen1-1"}
    assert capfd.readouterr().err == (
        "matinee train: rank 1 was ended by SIGKILL (often: out of memory): all start again from "
        "the last checkpoint (restarts left: 0)\n"
    )


def test_restarts_come_to_an_end(run, tmp_path):
    body = '(here / f"seen{rank}-{restart}").touch(); sys.exit(5)'
    assert run(body, max_restarts=2, processes=1) == 5
    assert len(list(tmp_path.glob("seen*"))) == 3


def test_error_that_was_told_would_come_again_and_is_final(run, tmp_path):
    body = '(here / f"seen{rank}-{restart}").touch(); sys.exit(2) if rank else sleep()'
    assert run(body, max_restarts=3) == 2
    assert not list(tmp_path.glob("seen*-1"))


def test_rank_0_keeps_the_terminal(run):
    ours, theirs = pty.openpty()
    before = os.dup(2)
    os.dup2(theirs, 2)
    try:
        assert run("sys.exit(0 if rank or sys.stderr.isatty() else 9)") == 0
    finally:
        os.dup2(before, 2)
        for fd in (before, ours, theirs):
            os.close(fd)


def test_more_ranks_than_gpus_are_refused_with_their_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_gpus(2, "auto")
    with pytest.raises(ConfigError, match="--gpus 3: there are 2 here"):
        check_gpus(3, "auto")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=r"--gpus 2: there is no GPU here; .*--run.device cpu"):
        check_gpus(2, "auto")
    check_gpus(2, "cpu")
    with pytest.raises(ConfigError, match="--gpus 0: at least 1"):
        check_gpus(0, "cpu")


@st.composite
def torchrun_variables(draw):
    nodes, local_world = draw(st.integers(1, 64)), draw(st.integers(1, 16))
    node, local_rank = draw(st.integers(0, nodes - 1)), draw(st.integers(0, local_world - 1))
    return {
        "RANK": str(node * local_world + local_rank), "WORLD_SIZE": str(nodes * local_world),
        "LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(local_world),
        "MASTER_ADDR": "host", "MASTER_PORT": str(draw(st.integers(1, 65535))),
    }  # fmt: skip


@given(torchrun_variables(), st.data())
def test_torchruns_variables_are_read_or_the_missing_ones_named(variables, data):
    read = RankEnvironment.read(variables)
    node, local_rank = divmod(read.rank, read.local_world)
    assert local_rank == read.local_rank
    assert 0 <= node < read.nodes == read.world // read.local_world
    assert str(read.port) == variables["MASTER_PORT"]
    missing = data.draw(st.sampled_from(sorted(variables)))
    with pytest.raises(ConfigError, match=missing):
        RankEnvironment.read({k: v for k, v in variables.items() if k != missing})
    number = data.draw(st.sampled_from(sorted(set(variables) - {"MASTER_ADDR"})))
    with pytest.raises(ConfigError, match=number):
        RankEnvironment.read({**variables, number: data.draw(st.sampled_from(["-1", "x", "1.5"]))})
    with pytest.raises(ConfigError, match=r"RANK=.* must be below WORLD_SIZE"):
        RankEnvironment.read({**variables, "RANK": variables["WORLD_SIZE"]})


def test_variables_that_say_nothing_of_ranks_make_a_single_process():
    lying_around = {"MASTER_ADDR": "host", "MASTER_PORT": "1", "SLURM_NTASKS": "8"}
    assert RankEnvironment.read(lying_around) == RankEnvironment()
