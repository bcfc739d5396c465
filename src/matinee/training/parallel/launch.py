"""Start the ranks of this machine by torchrun's own engine, pass signals on, say how they ended."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from matinee.errors import ConfigError, MatineeError, first_line
from matinee.training.parallel.environment import NodeEnvironment
from matinee.training.parallel.watch import TOLD, TRY_AGAIN

# A terminal that is closed sends SIGHUP: the run is saved as for SIGTERM.
_PASSED_ON = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGUSR1: signal.SIGUSR1,
    signal.SIGHUP: signal.SIGTERM,
}
_GRACE_S = 3.0  # in which ranks that heard of another's failure end by themselves
_NODES_TIMEOUT_S = 900
_LAST_S = 5.0


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
                run_id=node.run_id,
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
        return _run(_Agent(spec, _Streams()), last_s=_LAST_S if node.nodes > 1 else 0.0)


def _run(agent: _Agent, last_s: float) -> int:
    """Run the agent in a thread: torch's own handling of signals is of the main thread.

    last_s: how long it stays after its ranks, for nodes that still hear from it.
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


class _Agent(LocalElasticAgent):
    """torchrun's agent, but ranks that save have time, and how a rank ended is not lost."""

    def __init__(self, spec: WorkerSpec, streams: _Streams) -> None:
        super().__init__(spec, streams)
        self.signals: deque[signal.Signals] = deque()
        self.stop: signal.Signals | None = None
        self._lock = threading.Lock()
        self._running = False
        self._killed = False
        self._complete = False
        self._failed: int | None = None

    def status(self) -> int:
        """Exit status of the whole run."""
        if self._failed is not None:
            status = self._failed
            return TOLD if status == TRY_AGAIN else status if status > 0 else 128 - status
        if self.stop is not None and not self._complete:
            return 128 + self.stop
        return 0

    def stopped_while_idle(self) -> bool:
        """Whether a signal came while no rank was running; none will then be started."""
        with self._lock:
            if self.signals and not self._running:
                self.stop = self.signals[0]
            return self.stop is not None and not self._running

    def close(self) -> None:
        self._kill()
        self._rdzv_handler.shutdown()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with self._lock:
            if self.stop is not None:
                raise MatineeError("stopped")
            pids: dict[int, Any] = super()._start_workers(worker_group)
            self._running = True
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._pass_signals_on()
        ended = self._ended()
        failed = {rank: status for rank, status in ended.items() if not self._expected(status)}
        if failed:
            self._give_up_or_start_again(failed)
        elif len(ended) < len(worker_group.workers):
            # torch would end the others 30 s after the first, even if they still save.
            return RunResult(state=WorkerState.HEALTHY)
        else:
            self._complete = not any(ended.values())
            self._remaining_restarts = 0  # a run that was stopped ends with a status too
        with self._lock:
            self._running = False
        result: RunResult = super()._monitor_workers(worker_group)
        return result

    def _give_up_or_start_again(self, failed: dict[int, int]) -> None:
        # Of several at once, one that was killed explains the others, and so does one that told.
        rank = min(failed, key=lambda r: (failed[r] >= 0, failed[r] != TOLD, r))
        self._await_others()
        self._kill()
        again = failed[rank] != TOLD and not self.stop and self._remaining_restarts > 0
        left = self._remaining_restarts - 1
        more = f": all start again from the last checkpoint (restarts left: {left})"
        if failed[rank] < 0 or again:
            print(
                f"matinee train: rank {rank} {_how(failed[rank])}{more if again else ''}",
                file=sys.stderr,
            )
        if not again:
            self._failed = failed[rank]
            self._remaining_restarts = 0

    def _shutdown(self, *args: Any, **kwargs: Any) -> None:
        # What is still running here has lost its peers and can save nothing.
        self._kill()
        super()._shutdown(*args, **kwargs)

    def _pass_signals_on(self) -> None:
        while self.signals:
            number = self.signals.popleft()
            if number == signal.SIGQUIT or (self.stop and number == signal.SIGINT):
                self.stop = self.stop or number
                self._killed = True
                self._kill()
            elif self.stop is None:
                self.stop = number
                for pid in self._alive():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, _PASSED_ON[number])

    def _expected(self, status: int) -> bool:
        """Whether a rank ended as it should: done, or stopped on request."""
        if self.stop is None:
            return status == 0
        if self._killed:
            return True
        passed = _PASSED_ON[self.stop]
        return status in (0, 128 + passed, -passed)

    def _ended(self) -> dict[int, int]:
        """Statuses of ranks that have ended, by rank; torch collects them later."""
        ended = {}
        for worker in self.get_worker_group().workers:
            state = os.waitid(os.P_PID, worker.id, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if state is not None:
                by_signal = state.si_code != os.CLD_EXITED
                ended[worker.global_rank] = -state.si_status if by_signal else state.si_status
        return ended

    def _alive(self) -> list[int]:
        """Process ids of running ranks."""
        alive = []
        for worker in self.get_worker_group().workers:
            with contextlib.suppress(ChildProcessError):
                flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
                if worker.id and os.waitid(os.P_PID, worker.id, flags) is None:
                    alive.append(worker.id)
        return alive

    def _await_others(self) -> None:
        end = time.monotonic() + _GRACE_S
        while self._alive() and time.monotonic() < end:
            time.sleep(0.05)

    def _kill(self) -> None:
        for pid in self._alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # with its decoders


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    known = -status in set(signal.Signals)
    name = signal.Signals(-status).name if known else f"signal {-status}"
    return f"was ended by {name}{' (often: out of memory)' if name == 'SIGKILL' else ''}"


class _Streams(LogsSpecs):
    """Who may write where: rank 0 as if it had been started alone, the others to stderr only."""

    def __init__(self) -> None:
        super().__init__()
        self._starts = 0

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        for env in envs.values():
            env["TORCHELASTIC_ERROR_FILE"] = ""
            # torch counts a node's own restarts, but not those that another node began.
            env["TORCHELASTIC_RESTART_COUNT"] = str(self._starts)
        self._starts += 1
        return LogsDest(
            stdouts={i: "" if env["RANK"] == "0" else os.devnull for i, env in envs.items()},
            stderrs=dict.fromkeys(envs, ""),
            error_files=dict.fromkeys(envs, os.devnull),
        )

    @property
    def root_log_dir(self) -> str:
        return os.devnull


@contextlib.contextmanager
def _handlers(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    numbers = {*_PASSED_ON, signal.SIGQUIT}
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
