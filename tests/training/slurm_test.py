"""The Slurm script, run for real by stand-ins for srun and scontrol."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matinee.errors import ConfigError
from matinee.training.parallel import agent
from matinee.training.parallel import launch as launch_module
from matinee.training.parallel.environment import (
    NodeEnvironment,
    RankEnvironment,
    first_host,
    tasks_on_node,
)
from matinee.training.parallel.launch import launch
from matinee.training.parallel.slurm import SlurmJob, sbatch_script

# Starts a task on each of SLURM_NNODES "nodes" and passes USR1 and TERM on, as srun does; the
# status is the highest of them.
SRUN = """
import os, signal, subprocess, sys
args = sys.argv[1:]
while args[0].startswith("--"):
    args.pop(0)
nodes = int(os.environ["SLURM_NNODES"])
step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost", "SLURMD_NODENAME": "localhost",
        "SLURM_STEP_NUM_TASKS": str(nodes), "SLURM_STEP_NUM_NODES": str(nodes)}
tasks = []
def forward(number, frame):
    for task in tasks:
        task.send_signal(number)
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, forward)
for node in range(nodes):
    own = {"SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURM_LOCALID": "0"}
    tasks.append(subprocess.Popen(args, env={**os.environ, **step, **own}))
statuses = [task.wait() for task in tasks]
sys.exit(max(s if s >= 0 else 128 - s for s in statuses))
"""

SCONTROL = """
import os, sys
from pathlib import Path
if sys.argv[1] == "show":
    print("JobId=%s\\n   JobState=RUNNING Reason=None" % os.environ["SLURM_JOB_ID"])
    print("   PreemptEligibleTime=2025-01-01T00:00:00 PreemptTime=" + os.environ["PREEMPT_TIME"])
else:
    with open("requeued", "a") as file:
        file.write(" ".join(sys.argv[1:]) + "\\n")
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Runs a script as the batch shell would, with `task` as the interpreter of each task."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, code in (("srun", SRUN), ("scontrol", SCONTROL)):
        (bin_ / name).write_text(f"#!{sys.executable} -S\n{code}")
        (bin_ / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)

    class Cluster:
        def __init__(self) -> None:
            self.environ = {
                **os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "SLURM_JOB_ID": "4321",
                "SLURM_NNODES": "1", "SLURM_CPUS_PER_TASK": "2", "PREEMPT_TIME": "None",
            }  # fmt: skip

        def script(self, args: list[str], task: str, nodes: int = 1, gpus: int = 2) -> Path:
            python = tmp_path / "a python"
            python.write_text(f"#!{sys.executable}\n{task}")
            python.chmod(0o755)
            self.environ["SLURM_NNODES"] = str(nodes)
            path = tmp_path / "run.sh"
            text = sbatch_script("tsm", args, SlurmJob(nodes=nodes, gpus=gpus), python=str(python))
            path.write_text(text)
            return path

        def run(self, path: Path) -> int:
            done = subprocess.run(["bash", str(path)], env=self.environ, timeout=240, check=False)
            return done.returncode

        @property
        def requeued(self) -> str:
            path = tmp_path / "requeued"
            return path.read_text() if path.exists() else ""

    return Cluster()


TELL = "import json, os, sys; json.dump(sys.argv[1:], open('argv', 'w'))"


def test_flags_reach_the_run_exactly(cluster, tmp_path):
    args = [
        "--data", "a b.pack", "--out", "$(touch injected)", "--optim.lr", "-0.5", "--tiny",
        "--x=`touch injected`\n#SBATCH --nodes=9\n'\"\\", "{recipe}", "--run.views", "3x1", "; ls",
    ]  # fmt: skip
    assert cluster.run(cluster.script(args, TELL)) == 0
    told = json.loads((tmp_path / "argv").read_text())
    assert told == ["-m", "matinee", "train", "tsm", *args, "--gpus", "2", "--resume", "auto"]
    assert not (tmp_path / "injected").exists()


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)))
@settings(max_examples=15, deadline=None)
def test_any_arguments_survive_the_shell(args):
    script = sbatch_script("tsm", args, SlurmJob())
    # What the shell itself makes of the words behind srun.
    command = script[script.index("\nsrun ") + 1 : script.index("\nrun=$!")].removesuffix(" &")
    shown = subprocess.run(
        ["bash", "-c", command.replace("srun ", "printf '%s\\0' ", 1)],
        capture_output=True, check=True, env={"SLURM_CPUS_PER_TASK": "8", "python": "p"},
    ).stdout.decode().split("\0")[3:-1]  # fmt: skip
    assert shown == ["p", "-m", "matinee", "train", "tsm", *args, "--gpus", "8", "--resume", "auto"]
    head = [line for line in script.splitlines() if line.startswith("#SBATCH --nodes")]
    assert head[0] == "#SBATCH --nodes=1"


def test_head_asks_for_what_was_wanted():
    job = SlurmJob(
        nodes=4, gpus=8, cpus=96, time="2-12", save_s=120, partition="a100,h100", account="vision",
        name="big", option=("--constraint=ib",),
    )  # fmt: skip
    script = sbatch_script("tsm", [], job)
    first = script.index("\nsrun ")
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", script[:first], re.MULTILINE))
    assert asked == {
        "job-name": "big", "nodes": "4", "ntasks-per-node": "1", "gpus-per-node": "8",
        "cpus-per-task": "96", "time": "2-12", "partition": "a100,h100", "account": "vision",
        "signal": "B:USR1@120", "requeue": "", "output": "%x-%j.out", "open-mode": "append",
        "constraint": "ib",
    }  # fmt: skip
    assert script.startswith("#!/bin/bash\n")
    for cpu in (["--run.device", "cpu"], ["--run.device=cpu"]):
        assert "gpus-per-node" not in sbatch_script("tsm", cpu, job)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nodes", 0), ("gpus", 0), ("cpus", 1), ("time", "soon"), ("time", "1:00:00\n#SBATCH -x"),
        ("save_s", 0), ("save_s", 70_000), ("partition", "a b"), ("name", "a\n"), ("account", ""),
        ("option", ("-x",)), ("option", ("--qos=a\nrm",)),
    ],
)  # fmt: skip
def test_what_slurm_would_not_take_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"--{field.replace('_', '-')}"):
        SlurmJob(**{"gpus": 2, field: value})


@pytest.mark.parametrize("args", [["--resume"], ["--gpus", "2"], ["--nodes=2"]])
def test_flags_that_the_script_sets_are_refused(args):
    with pytest.raises(ConfigError, match=args[0].partition("=")[0]):
        sbatch_script("tsm", args, SlurmJob())


@pytest.mark.parametrize("status", [0, 1, 2, 138, 143])
def test_run_that_ends_by_itself_is_not_queued_again(cluster, status):
    path = cluster.script([], f"import sys; sys.exit({status})")
    assert cluster.run(path) == status
    assert cluster.requeued == ""


# As Slurm does before the time is up: USR1 to the batch shell alone.
STOPPED = """
import os, signal, sys, time
from pathlib import Path
got = []
signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
shell = int(Path(f"/proc/{os.getppid()}/stat").read_text().split()[3])  # srun's parent
os.kill(shell, signal.SIGUSR1)
while not got: time.sleep(0.02)
time.sleep(0.3)
Path("saved").touch()
"""


def test_run_is_saved_and_queued_again_when_its_time_is_nearly_up(cluster, tmp_path):
    assert cluster.run(cluster.script([], STOPPED + "sys.exit(138)")) == 138
    assert (tmp_path / "saved").exists()
    assert cluster.requeued == "requeue 4321\n"


@pytest.mark.parametrize("status", [0, 2])
def test_run_that_is_done_or_fails_at_the_end_of_its_time_is_not(cluster, status):
    assert cluster.run(cluster.script([], STOPPED + f"sys.exit({status})")) == status
    assert cluster.requeued == ""


def test_run_that_saved_for_a_job_of_higher_priority_is_queued_again(cluster):
    cluster.environ["PREEMPT_TIME"] = "2025-01-01T12:00:00"
    assert cluster.run(cluster.script([], "import sys; sys.exit(143)")) == 143
    assert cluster.requeued == "requeue 4321\n"


# An interpreter that starts ranks as `matinee train --gpus` does. Ranks count steps and save.
NODE = """
import sys
from matinee.training.parallel.launch import launch
args = sys.argv[5:]
sys.exit(launch(args, processes=int(args[args.index("--gpus") + 1]), program=["rank.py"]))
"""
RANK = """
import os, signal, sys, time
from pathlib import Path
rank, world, stop = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: stop.append(number))
saved = Path("checkpoint")
resumed = saved.exists()
with open("log", "a") as log:
    log.write(f"rank {rank} of {world} {'goes on' if resumed else 'begins'}\\n")
if rank == 0 and not resumed:
    while len(Path("log").read_text().splitlines()) < world: time.sleep(0.02)
    os.kill(int(os.environ["SHELL_PID"]), signal.SIGUSR1)
while not stop and not resumed: time.sleep(0.02)
if stop:
    if rank == 0: time.sleep(0.5); saved.touch()
    sys.exit(128 + stop[0])
"""


def test_ranks_save_and_go_on_in_the_next_stretch(cluster, tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    path = cluster.script(["--data", "x"], NODE)
    path.write_text(path.read_text().replace("#!/bin/bash", "#!/bin/bash\nexport SHELL_PID=$$", 1))
    assert cluster.run(path) == 138
    assert cluster.requeued == "requeue 4321\n"
    assert (tmp_path / "checkpoint").exists()
    assert cluster.run(path) == 0
    assert cluster.requeued == "requeue 4321\n"
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(lines[:2]) == ["rank 0 of 2 begins", "rank 1 of 2 begins"]
    assert sorted(lines[2:]) == ["rank 0 of 2 goes on", "rank 1 of 2 goes on"]


class Nodes:
    """Launchers of two nodes, each a process forked from this one, for torch is imported here."""

    def __init__(self, script: Path) -> None:
        self.script = script
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def run(self, max_restarts: int = 0) -> list[int | None]:
        context = multiprocessing.get_context("fork")
        nodes = [context.Process(target=self._launch, args=(n, max_restarts)) for n in range(2)]
        for node in nodes:
            node.start()
        for node in nodes:
            node.join(240)
        return [node.exitcode for node in nodes]

    def _launch(self, node: int, max_restarts: int) -> None:
        os.environ.update(
            SLURM_STEP_ID="0", SLURM_JOB_ID="7", SLURM_STEP_NUM_TASKS="2", SLURM_STEP_NUM_NODES="2",
            SLURM_NODEID=str(node), SLURMD_NODENAME="127.0.0.1", MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(self.port),
        )  # fmt: skip
        agent._GRACE_S, launch_module._LAST_S = 0.2, 0.5
        os._exit(launch([], processes=2, max_restarts=max_restarts, program=[str(self.script)]))


NODES_RANK = """
import os, sys, time
from pathlib import Path
rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
Path(__file__).with_name(f"seen{rank}-{restart}").touch()
"""


def test_launchers_of_two_nodes_find_each_other(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(NODES_RANK)
    assert Nodes(script).run() == [0, 0]
    assert {path.name for path in tmp_path.glob("seen*")} == {f"seen{rank}-0" for rank in range(4)}


def test_ranks_of_both_nodes_start_again_after_one_is_killed(tmp_path, capfd):
    script = tmp_path / "rank.py"
    script.write_text(
        NODES_RANK + "if restart == 0: os.kill(os.getpid(), 9) if rank == 3 else time.sleep(60)"
    )
    assert Nodes(script).run(max_restarts=1) == [0, 0]
    seen = {f"seen{rank}-{restart}" for rank in range(4) for restart in range(2)}
    assert {path.name for path in tmp_path.glob("seen*")} == seen
    assert capfd.readouterr().err == (
        "matinee train: rank 3 was ended by SIGKILL (often: out of memory): all start again from "
        "the last checkpoint (restarts left: 0)\n"
    )


STEP = {
    "SLURM_JOB_ID": "123456", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "gpu[3,7-9]",
    "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NUM_TASKS": "30",
    "SLURM_STEP_TASKS_PER_NODE": "8(x3),6",
}  # fmt: skip


def test_ranks_that_srun_starts_itself_read_slurms_variables():
    own = {"SLURM_NODEID": "3", "SLURM_PROCID": "29", "SLURM_LOCALID": "5"}
    read = RankEnvironment.read({**STEP, **own})
    assert (read.rank, read.world, read.local_rank, read.local_world) == (29, 30, 5, 6)
    assert (read.nodes, read.launched_by, read.address) == (4, "slurm", "gpu3")
    assert 1024 < read.port < 32768
    for name in ("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID"):
        with pytest.raises(ConfigError, match=name):
            RankEnvironment.read({k: v for k, v in {**STEP, **own}.items() if k != name})
    with pytest.raises(ConfigError, match="SLURM_LOCALID=6"):
        RankEnvironment.read({**STEP, **own, "SLURM_LOCALID": "6"})
    # torchrun inside of a Slurm step says more about this process than Slurm does.
    torchrun = {
        "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "h", "MASTER_PORT": "9",
    }  # fmt: skip
    assert RankEnvironment.read({**STEP, **own, **torchrun}).launched_by == "torchrun"


def test_launcher_of_each_node_reads_slurms_variables():
    step = {**STEP, "SLURM_STEP_NUM_TASKS": "4", "SLURM_NODEID": "2", "SLURMD_NODENAME": "gpu8"}
    read = NodeEnvironment.read(step)
    assert (read.node, read.nodes, read.address, read.run_id) == (2, 4, "gpu3", "123456")
    assert read.name == "gpu8"
    assert NodeEnvironment.read({}) == NodeEnvironment()
    with pytest.raises(ConfigError, match=r"30 tasks on 4 nodes: .*--ntasks-per-node=1"):
        NodeEnvironment.read({**STEP, "SLURM_NODEID": "0"})


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(1, 5)), min_size=1, max_size=5))
def test_tasks_of_each_node_are_those_of_the_long_form(parts):
    short = ",".join(f"{tasks}(x{times})" if times > 1 else str(tasks) for tasks, times in parts)
    long = [tasks for tasks, times in parts for _ in range(times)]
    assert [tasks_on_node(short, node) for node in range(len(long))] == long
    for wrong in (len(long), -1):
        with pytest.raises(ValueError, match=re.escape(short)):
            tasks_on_node(short, wrong)


@pytest.mark.parametrize(
    ("nodes", "first"),  # as `scontrol show hostnames` says
    [
        ("gpu1", "gpu1"), ("gpu[007-012,20],big1", "gpu007"), ("a-b.c,d", "a-b.c"),
        ("r[0-1]n[3,5-6]x", "r0n3x"), ("n[12]", "n12"), ("", ""),
    ],
)  # fmt: skip
def test_first_host_of_slurms_lists(nodes, first):
    assert first_host(nodes) == first


def test_command_prints_a_script_whose_flags_are_known(capsys):
    from matinee.cli.slurm import main

    flags = ["--data", "a pack", "--out", "runs/a", "--optim.batch-size", "48"]
    with pytest.raises(ConfigError, match=r"--optim.batch-size 16 cannot be cut .* 24 ranks"):
        main(["tsm", "--nodes", "3", *flags[:4]])
    assert main(["tsm", "--nodes", "3", "--time", "1:00:00", *flags]) == 0
    script = capsys.readouterr().out
    assert "#SBATCH --nodes=3\n" in script
    assert "#SBATCH --time=1:00:00\n" in script
    assert shlex.quote("a pack") in script
    assert main(["tsm", "--nodes", "3", "--time", "1:00:00", "--", *flags]) == 0
    assert capsys.readouterr().out == script
    with pytest.raises(SystemExit):
        main(["tsm", "--data", "a", "--out", "b", "--optim.lrr", "0.5"])
    assert capsys.readouterr().out == ""
