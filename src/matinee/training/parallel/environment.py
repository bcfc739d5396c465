"""Which rank a process is, read from what torchrun or Slurm put into its environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from matinee.errors import ConfigError

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_TELLING = ("RANK", "WORLD_SIZE", "LOCAL_RANK")  # the others are also set for other purposes


class Store(Protocol):
    """What is used of `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...
    def multi_get(self, keys: list[str]) -> list[bytes]: ...


@dataclass(frozen=True)
class RankEnvironment:
    """One process of a run. Without torchrun and srun it is rank 0 of 1."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    """Among the ranks of this node."""
    local_world: int = 1
    nodes: int = 1
    restarts: int = 0
    """How often torchrun has started these ranks again."""
    launched_by: str = ""
    """torchrun, slurm (srun started each rank) or nothing."""
    address: str = ""
    """Host and port where ranks meet; empty for a single process."""
    port: int = 0
    agent_store: bool = False
    """Whether torchrun holds the store through which ranks meet; else rank 0 does."""

    @staticmethod
    def read(environ: Mapping[str, str] | None = None) -> RankEnvironment:
        """Read torchrun's variables, else those of a Slurm step with several tasks.

        Raises:
            ConfigError: variables that are missing, no numbers, or contradict each other.
        """
        environ = os.environ if environ is None else environ
        if any(name in environ for name in _TELLING):
            return _torchrun(environ)
        if _step_tasks(environ) > 1:
            return _slurm(environ)
        return RankEnvironment()

    @property
    def hosts_store(self) -> bool:
        return self.rank == 0 and not self.agent_store

    def open_store(self, purpose: str, timeout_s: float) -> PrefixStore:
        """A new connection to the store through which ranks meet, under a name of its own.

        torchrun keeps its store when it starts ranks again: what the former have left there must
        not be found.

        Raises:
            torch.distributed.DistError: it cannot be reached within `timeout_s`.
        """
        return PrefixStore(
            f"{purpose}/{self.restarts}",
            TCPStore(
                self.address,
                self.port,
                is_master=self.hosts_store,
                multi_tenant=True,  # further connections of rank 0 share the first one's server
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_s),
            ),
        )


@dataclass(frozen=True)
class NodeEnvironment:
    """One node of a run whose ranks are started by a launcher on each node."""

    node: int = 0
    nodes: int = 1
    address: str = "localhost"
    """Host and port where launchers meet. Port 0: any that is free."""
    port: int = 0
    run_id: str = "local"
    name: str = "localhost"
    """Under which the other nodes find this one."""

    @staticmethod
    def read(environ: Mapping[str, str] | None = None) -> NodeEnvironment:
        """Read a Slurm step with one task a node; anything else is a run on this machine alone.

        Raises:
            ConfigError: a step with several tasks a node, or variables that cannot be understood.
        """
        environ = os.environ if environ is None else environ
        tasks = _step_tasks(environ)
        if tasks <= 1:
            return NodeEnvironment()
        nodes, node = _step_nodes(environ), _number(environ, "SLURM_NODEID")
        if tasks != nodes:
            raise ConfigError(
                f"--gpus starts the ranks of a node itself, but srun has started {tasks} tasks on "
                f"{nodes} nodes: give srun --ntasks-per-node=1, or leave --gpus out"
            )
        address, port = _meeting_point(environ)
        name = environ.get("SLURMD_NODENAME", "") or address
        return NodeEnvironment(node, nodes, address, port, environ["SLURM_JOB_ID"], name)


def first_host(nodes: str) -> str:
    """The first name in Slurm's list of hosts: "gpu[07-09,12],big1" gives gpu07."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None  # the pattern also matches nothing
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])


def tasks_on_node(tasks: str, node: int) -> int:
    """How many tasks a node has in Slurm's short form: "8(x3),4" is 8, 8, 8, 4.

    Raises:
        ValueError: another form, or fewer nodes.
    """
    counts: list[int] = []
    for part in tasks.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(tasks)
        counts += [int(match[1])] * int(match[2] or 1)
    if not 0 <= node < len(counts):
        raise ValueError(tasks)
    return counts[node]


def _torchrun(environ: Mapping[str, str]) -> RankEnvironment:
    missing = [name for name in _TORCHRUN if not environ.get(name)]
    if missing:
        there = [name for name in _TELLING if name in environ]
        raise ConfigError(
            f"{', '.join(there)} set in the environment, but not {', '.join(missing)}: start with "
            f"torchrun, which sets all, or unset {' '.join(there)} for a single process"
        )
    world, local_world = _number(environ, "WORLD_SIZE"), _number(environ, "LOCAL_WORLD_SIZE")
    _check_below(environ, "RANK", "WORLD_SIZE")
    _check_below(environ, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if local_world > world:
        raise ConfigError(f"LOCAL_WORLD_SIZE={local_world} is more than WORLD_SIZE={world}")
    nodes = -(-world // local_world)
    return RankEnvironment(
        rank=_number(environ, "RANK"),
        world=world,
        local_rank=_number(environ, "LOCAL_RANK"),
        local_world=local_world,
        nodes=_number(environ, "GROUP_WORLD_SIZE") if "GROUP_WORLD_SIZE" in environ else nodes,
        restarts=_number(environ, "TORCHELASTIC_RESTART_COUNT", 0),
        launched_by="torchrun",
        address=environ["MASTER_ADDR"],
        port=_number(environ, "MASTER_PORT"),
        agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _slurm(environ: Mapping[str, str]) -> RankEnvironment:
    world, node = _step_tasks(environ), _number(environ, "SLURM_NODEID")
    rank, local_rank = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_LOCALID")
    name = _first_set(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    try:
        local_world = tasks_on_node(environ[name], node)
    except ValueError:
        raise ConfigError(
            f"{name}={environ[name]!r} does not say how many tasks node {node} (SLURM_NODEID) has"
        ) from None
    if rank >= world or local_rank >= local_world:
        raise ConfigError(
            f"SLURM_PROCID={rank} of {world} tasks, SLURM_LOCALID={local_rank} of {local_world} on "
            "this node: they contradict each other"
        )
    address, port = _meeting_point(environ)
    nodes = _step_nodes(environ)
    return RankEnvironment(
        rank, world, local_rank, local_world, nodes, 0, "slurm", address, port
    )  # fmt: skip


def _step_tasks(environ: Mapping[str, str]) -> int:
    """How many tasks srun started; 1 outside of a step.

    In a batch script the number of tasks is set too, though only one process runs.
    """
    if "SLURM_STEP_ID" not in environ:
        return 1
    return _number(environ, _first_set(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))


def _step_nodes(environ: Mapping[str, str]) -> int:
    return _number(environ, _first_set(environ, "SLURM_STEP_NUM_NODES", "SLURM_NNODES"))


def _meeting_point(environ: Mapping[str, str]) -> tuple[str, int]:
    """The step's first node and a port of the job's own; MASTER_ADDR, MASTER_PORT go first."""
    address = environ.get("MASTER_ADDR") or first_host(
        environ[_first_set(environ, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")]
    )
    job = _number(environ, "SLURM_JOB_ID")
    # Below 32768, where Linux begins to hand out ports by itself.
    return address, _number(environ, "MASTER_PORT", 12_000 + job % 20_000)


def _first_set(environ: Mapping[str, str], *names: str) -> str:
    for name in names:
        if environ.get(name):
            return name
    raise ConfigError(f"srun has started several tasks, but {' and '.join(names)} are not set")


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "")
    if not text and default is not None:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        raise ConfigError(f"{name}={text!r} in the environment: not a number")
    return int(text)


def _check_below(environ: Mapping[str, str], name: str, limit: str) -> None:
    if _number(environ, name) >= _number(environ, limit):
        raise ConfigError(f"{name}={environ[name]} must be below {limit}={environ[limit]}")
