"""How many processes and threads decode: a plan made of the cores there are, with its reason.

# Note [Processes and threads]
A training loop in pure Python gives up the interpreter's lock only every 5 ms, and a decoder needs
the lock several times a frame: so decoders live in processes of their own. A process costs memory
(its interpreter and libraries) that another thread does not, but threads of one process share its
lock, which each holds for the part `GIL_SHARE` of its time. So few decoders get a process each, and
many share processes in pairs: two threads then lose little to each other.
benchmarks/loader_scale.py measures all of this.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from matinee.errors import ConfigError

Mode = Literal["processes", "threads", "nvdec"]

_MOST = 16  # decoders that are chosen by itself: more starve the other users of a machine
_ALONE = 8  # decoders up to which each gets a process of its own
_TOGETHER = 2  # threads of a process beyond that
_FEEDERS = 4  # threads that feed a GPU's decoder: the hardware has few of them
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Cores:
    """`count` cores that a rank may use, and why so many."""

    count: int
    reason: str


@dataclass(frozen=True)
class Decoders:
    """`processes` of `threads` each; without processes, threads of the training process."""

    processes: int
    threads: int
    reason: str
    nvdec: bool = False
    """The threads feed the GPU's decoder."""

    @property
    def mode(self) -> Mode:
        if self.nvdec:
            return "nvdec"
        return "processes" if self.processes else "threads"

    @property
    def count(self) -> int:
        """Clips that are decoded at the same time."""
        return max(1, self.processes) * self.threads

    def __str__(self) -> str:
        if self.nvdec:
            what = f"the GPU's decoder, fed by {_number(self.threads, 'thread')}"
        elif not self.processes:
            what = _number(self.threads, "decoding thread") + " in the training process"
        elif self.threads == 1:
            what = _number(self.processes, "decoding process", "es")
        else:
            each = f"{self.threads} threads" + (" each" if self.processes > 1 else "")
            what = f"{_number(self.processes, 'decoding process', 'es')} of {each}"
        return f"{what} ({self.reason})"


def plan_decoders(
    cores: Cores,
    *,
    mode: Mode = "processes",
    workers: int | None = None,
    threads: int | None = None,
) -> Decoders:
    """Who decodes on these cores. See Note [Processes and threads].

    Args:
        mode: threads: all of them in the training process; nvdec: they feed the GPU's decoder.
        workers: decoders in all; None for one a core.
        threads: of a process.

    Raises:
        ConfigError: numbers below 1, or `threads` of no process.
    """
    for name, value in (("workers", workers), ("threads", threads)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} {value}: at least 1")
    if mode not in ("processes", "threads", "nvdec"):
        raise ConfigError(f"mode {mode!r}: processes, threads or nvdec")
    if mode != "processes" and threads is not None:
        raise ConfigError(
            f"threads {threads} are those of a decoding process, and mode {mode!r} has none: "
            "set workers instead"
        )
    if mode == "nvdec":
        count = workers or min(cores.count, _FEEDERS)
        return Decoders(0, count, "as set" if workers else "few saturate it", nvdec=True)
    if workers is not None:
        count, reason = workers, "as set"
    else:
        count, reason = min(cores.count, _MOST), f"one a core: {cores.reason}"
        if cores.count > _MOST:
            reason = f"at most {_MOST} unless set: {cores.reason}"
    if mode == "threads":
        return Decoders(0, count, reason)
    if threads is None:
        threads = 1 if count <= _ALONE else _TOGETHER
        if threads > 1:
            reason += f"; beyond {_ALONE} decoders, pairs share a process to save memory"
    processes = math.ceil(count / threads)
    return Decoders(processes, math.ceil(count / processes), reason)


def rank_cores(
    local_world: int | None = None, *, environ: Mapping[str, str] | None = None
) -> Cores:
    """The cores that this rank may use: its share of those that the process may run on.

    Args:
        local_world: ranks on this machine; as torchrun's LOCAL_WORLD_SIZE says when None.
    """
    environ = os.environ if environ is None else environ
    if local_world is None:
        given = environ.get("LOCAL_WORLD_SIZE", "1")
        local_world = int(given) if given.isdecimal() and int(given) > 0 else 1
    allowed, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    bound = environ.get("SLURM_CPUS_PER_TASK", "")
    own = bound.isdecimal() and "SLURM_LOCALID" in environ and allowed <= int(bound)
    return share_cores(allowed, there, cgroup_limit(), local_world, own=own)


def share_cores(
    allowed: int, there: int, limit: float | None, local_world: int, *, own: bool = False
) -> Cores:
    """One rank's share of a machine.

    Args:
        allowed: cores that the process may run on, of `there`.
        limit: cores' worth of time that its control group gets; None without limit.
        own: the `allowed` ones are this rank's alone, as a scheduler binds them.
    """
    words = [f"{allowed} of {_number(there, 'core')} may be used" if allowed < there
             else _number(there, "core")]  # fmt: skip
    usable = float(allowed)
    if limit is not None and limit < usable:
        usable = limit
        words.append(f"the container is limited to {limit:g}")
    if local_world > 1 and own:
        words.append("bound to this rank")
    elif local_world > 1:
        usable /= local_world
        words.append(f"shared by {local_world} ranks")
    return Cores(max(1, int(usable)), ", ".join(words))


def cgroup_limit(root: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Cores' worth of processor time that this process's control groups allow; None if unlimited.

    The smallest of all groups from its own up to the root counts.
    Source: Linux, Documentation/admin-guide/cgroup-v2.rst, cpu.max; scheduler/sched-bwc.rst.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = root
        elif "cpu" in controllers.split(","):
            base = root / controllers if (root / controllers).is_dir() else root / "cpu"
        else:
            continue
        group = base / path.lstrip("/")
        while True:
            limits.append(_quota(group))
            if group == base or base not in group.parents:
                break
            group = group.parent
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _quota(group: Path) -> float | None:
    """The limit of one group, as version 2 or 1 writes it."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            text = " ".join((group / name).read_text() for name in names)
        except OSError:
            continue
        found = re.fullmatch(r"\s*(\d+)\s+(\d+)\s*", text)
        if found and int(found[2]):
            return int(found[1]) / int(found[2])
    return None


def _number(count: int, what: str, plural: str = "s") -> str:
    return f"{count} {what}{plural if count != 1 else ''}"
