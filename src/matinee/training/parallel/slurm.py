"""A script for Slurm: train on several nodes, save before the time is up, queue and go on."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import tyro

from matinee.errors import ConfigError

_TIME = r"\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+|\d+-\d+:\d\d|\d+-\d+:\d\d:\d\d"


@dataclass(frozen=True)
class SlurmJob:
    """What to ask of Slurm."""

    nodes: int = 1
    """Machines."""
    gpus: int = 8
    """GPUs, and so ranks, of each node; with --run.device cpu the ranks alone."""
    cpus: int | None = None
    """Cores of each node, for the ranks and their decoders. Default: 8 for each rank."""
    time: str = "24:00:00"
    """Longest time of one stretch, in Slurm's form (D-HH:MM:SS); the job then queues again."""
    save_s: int = 300
    """Seconds before the end of that time at which the run begins to save."""
    partition: str | None = None
    """Which part of the cluster."""
    account: str | None = None
    """Who pays."""
    name: str | None = None
    """Of the job. Default: the recipe."""
    option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A further option of sbatch as it is, such as --option=--constraint=a100; may be repeated."""

    def __post_init__(self) -> None:
        for name, low in (("nodes", 1), ("gpus", 1), ("save_s", 1)):
            if getattr(self, name) < low:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} {getattr(self, name)}: at least {low}")
        if self.save_s > 65_535:
            raise ConfigError(f"--save-s {self.save_s}: Slurm takes at most 65535")
        if self.cpus is not None and self.cpus < self.gpus:
            raise ConfigError(f"--cpus {self.cpus}: each of {self.gpus} ranks needs one")
        if not re.fullmatch(_TIME, self.time, re.ASCII):
            raise ConfigError(f"--time {self.time!r}: write HH:MM:SS or D-HH:MM:SS")
        for name in ("partition", "account", "name"):
            value = getattr(self, name)
            # A line of the script's head: nothing may end it.
            if value is not None and not re.fullmatch(r"[\w.,:+=@/-]+", value):
                raise ConfigError(f"--{name} {value!r}: letters, digits and . , : + = @ / - only")
        for option in self.option:
            if not re.fullmatch(r"--[a-z]\S*", option):
                raise ConfigError(f"--option {option!r}: one option of sbatch, as --qos=long")


def sbatch_script(
    recipe: str, args: Sequence[str], job: SlurmJob, *, python: str = sys.executable
) -> str:
    """The script that runs `matinee train RECIPE …args` on `job.nodes` nodes.

    Args:
        args: flags of `matinee train`, as the shell passes them.
        python: the interpreter on the nodes.

    Raises:
        ConfigError: flags that the script itself sets.
    """
    for arg in args:
        flag = arg.split("=", 1)[0]
        if flag in ("--resume", "--gpus", "--nodes"):
            raise ConfigError(f"{flag}: the script sets it itself, leave it out")
    if not re.fullmatch(r"\w+", recipe):
        raise ConfigError(f"{recipe!r} is no recipe")
    command = _command((*args, "--gpus", str(job.gpus), "--resume", "auto"))
    return _SCRIPT.format(
        head="\n".join(f"#SBATCH {line}" for line in _head(recipe, args, job)),
        save_s=job.save_s,
        python=shlex.quote(python),
        recipe=recipe,
        command=" \\\n    ".join(command),
    )


def _head(recipe: str, args: Sequence[str], job: SlurmJob) -> list[str]:
    on_cpu = "--run.device=cpu" in args or ("--run.device", "cpu") in itertools.pairwise(args)
    return [
        f"--job-name={job.name or recipe}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        *([] if on_cpu else [f"--gpus-per-node={job.gpus}"]),
        f"--cpus-per-task={job.cpus or 8 * job.gpus}",
        f"--time={job.time}",
        *([f"--partition={job.partition}"] if job.partition else []),
        *([f"--account={job.account}"] if job.account else []),
        f"--signal=B:USR1@{job.save_s}",
        "--requeue",
        "--output=%x-%j.out",
        "--open-mode=append",
        *job.option,
    ]


def _command(args: Sequence[str]) -> list[str]:
    """Arguments, quoted, each flag on a line with its values."""
    lines: list[str] = []
    for arg in args:
        if arg.startswith("--") or not lines:
            lines.append(shlex.quote(arg))
        else:
            lines[-1] += f" {shlex.quote(arg)}"
    return lines


_SCRIPT = """\
#!/bin/bash
# Submit with: sbatch THIS_FILE. All stretches of the run write to one file, NAME-JOB.out.
{head}

# One task on each node: it starts that node's ranks and finds the other nodes by what Slurm tells
# it (SLURM_STEP_NODELIST, SLURM_NODEID); set MASTER_ADDR if ranks must meet at another address.
python={python}

# Slurm sends USR1 to this shell alone, {save_s} s before the time is up. It passes it on by srun to
# the ranks, which finish their step, save and end with status 138 (128 + USR1).
run=
stopped=
interrupted=
trap 'stopped=yes; interrupted=yes; [ -z "$run" ] || kill -USR1 "$run"' USR1

# A node whose ranks have saved must not end those that have not (--kill-on-bad-exit=0); one that
# goes on alone is ended after two minutes (--wait). srun takes no --cpus-per-task from sbatch.
srun --kill-on-bad-exit=0 --wait=120 --cpus-per-task="$SLURM_CPUS_PER_TASK" \\
    "$python" -m matinee train {recipe} \\
    {command} &
run=$!

# `wait` returns early when a signal comes, while srun goes on.
wait "$run"
status=$?
while [ -n "$interrupted" ]; do
    interrupted=
    wait "$run"
    status=$?
done

# A run that was stopped for the end of its time queues again; one that is done, failed or was
# cancelled does not. --resume auto then continues exactly where it stopped.
queue_again=
if [ "$status" -eq 138 ] && [ -n "$stopped" ]; then
    queue_again=yes
fi
# A job of higher priority sends TERM to the ranks. Slurm queues again what it has to kill in the
# end, but not a job that has saved and ended by itself before that.
if [ "$status" -eq 143 ]; then
    job=$(scontrol show job "$SLURM_JOB_ID")
    if [[ $job == *JobState=RUNNING* && $job == *PreemptTime=[0-9]* ]]; then
        queue_again=yes
    fi
fi
if [ -n "$queue_again" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""
