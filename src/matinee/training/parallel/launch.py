"""Start the ranks of this machine by torchrun's own engine, pass signals on, say how they ended."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

import torch
from rich.console import Console
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from matinee.errors import ConfigError, MatineeError, first_line
from matinee.training.parallel.agent import PASSED_ON, Agent, Streams
from matinee.training.parallel.environment import NodeEnvironment

_NODES_TIMEOUT_S = 900
_LAST_S = 3.0


def check_gpus(count: int, device: str) -> None:
    """Refuse more ranks than GPUs; on the CPU (`--run.device cpu`) any number may run.

    Raises:
        ConfigError: `count` cannot run here.
    """
    if count < 1:
        raise ConfigError(f"--gpus {count}: at least 1")
    if device == "cpu":
        return
    there = torch.cuda.device_count()
    if there == 0:
        raise ConfigError(
            f"--gpus {count}: there is no GPU here; with --run.device cpu that many processes "
            "train on the CPU"
        )
    if count > there:
        raise ConfigError(f"--gpus {count}: there {'is' if there == 1 else 'are'} {there} here")


def launch(
    args: Sequence[str],
    *,
    processes: int,
    max_restarts: int = 0,
    program: Sequence[str] = ("-m", "matinee", "train"),
) -> int:
    """Run `python -m matinee train …args` as several ranks and wait for their end.

    In a Slurm step with one task a node, these are this node's ranks, and the launchers of all
    nodes find each other. Rank 0 keeps the terminal; of the others only stderr is shown. SIGINT,
    SIGTERM and SIGUSR1 are passed to the ranks once, and they may take as long as they need to
    save; a second SIGINT, or SIGQUIT, ends them at once. Call it in the main thread.

    Args:
        max_restarts: how often all ranks are started again after one of them died or hung, with
            TORCHELASTIC_RESTART_COUNT counting. Errors that a rank has told (status 2) are final.

    Returns:
        The exit status: 0, 128 + the signal that stopped it, or that of the first rank to fail.

    Raises:
        ConfigError: a Slurm step of another form.
        MatineeError: the other nodes could not be reached.
    """
    node = NodeEnvironment.read()
    cores = len(os.sched_getaffinity(0))
    variables = {
        # The ranks' modules come from where these do, not from the current folder (-P).
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cores // processes))),
    }
    with _environment(variables), _quiet():
        rendezvous = get_rendezvous_handler(
            RendezvousParameters(
                backend="c10d",
                endpoint=f"{node.address}:{node.port}",
                run_id=node.run_id if node.nodes > 1 else uuid.uuid4().hex,
                min_nodes=node.nodes,
                max_nodes=node.nodes,
                local_addr=node.name,
                is_host=node.node == 0,
                timeout=_NODES_TIMEOUT_S,
            )
        )
        spec = WorkerSpec(
            role="rank",
            local_world_size=processes,
            entrypoint=sys.executable,
            # torchrun replaces ${local_rank} in arguments; none of ours is meant.
            args=("-P", *(arg.replace("$", "$$") for arg in (*program, *args))),
            rdzv_handler=rendezvous,
            max_restarts=max_restarts,
            monitor_interval=0.1,
            local_addr=node.name,
        )
        last_s = 0.0 if node.nodes == 1 else _LAST_S if node.node > 0 else 3 * _LAST_S
        return _run(Agent(spec, Streams()), last_s)


def _run(agent: Agent, last_s: float) -> int:
    """Run the agent in a thread: torch's own handling of signals is of the main thread.

    last_s: how long it stays after a failure or stop, for nodes that still hear from it, those of
        the first node longest.
    """
    failed: list[Exception] = []

    def work() -> None:
        try:
            agent.run()
        except Exception as error:
            failed.append(error)
        finally:
            if agent.status() != 0:
                time.sleep(last_s)
            agent.close()

    thread = threading.Thread(target=work, daemon=True)
    with _handlers(lambda number, frame: agent.signals.append(signal.Signals(number))):
        thread.start()
        while thread.is_alive():
            thread.join(0.2)
            if agent.stopped_while_idle():
                break  # it waits for other nodes; there is nothing to save
    if failed and not agent.stop:
        if isinstance(failed[0], RendezvousError):
            raise MatineeError(
                f"launchers of other nodes have ended, or cannot be reached: "
                f"{first_line(failed[0])}"
            )
        raise failed[0]
    status = agent.status()
    if status != 0:
        Console(stderr=True).show_cursor()  # a rank that was killed could not
    return status


@contextlib.contextmanager
def _handlers(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    numbers = {*PASSED_ON, signal.SIGQUIT}
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        numbers.discard(signal.SIGHUP)  # nohup
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the processes started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what torchrun logs: ranks tell themselves what went wrong."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
