"""torchrun's agent, which starts and collects the ranks of a node, as a run needs it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import deque
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from matinee.errors import MatineeError
from matinee.training.parallel.environment import RankEnvironment
from matinee.training.parallel.watch import TOLD, TRY_AGAIN, claim, watch_name

# A terminal that is closed sends SIGHUP: the run is saved as for SIGTERM.
PASSED_ON = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGUSR1: signal.SIGUSR1,
    signal.SIGHUP: signal.SIGTERM,
}
_GRACE_S = 3.0  # in which ranks that heard of another's failure end by themselves


class Agent(LocalElasticAgent):
    """torchrun's agent, but ranks that save have time, and how a rank ended is not lost."""

    def __init__(self, spec: WorkerSpec, streams: Streams) -> None:
        super().__init__(spec, streams)
        self._streams = streams
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
        status = failed[rank]
        what = f"rank {rank} {_how(status)}"
        self._publish(rank, TOLD if status == TOLD else TRY_AGAIN, what)
        end = time.monotonic() + _GRACE_S
        while self._alive() and time.monotonic() < end:
            time.sleep(0.05)
        self._kill()
        again = status != TOLD and not self.stop and self._remaining_restarts > 0
        if again:
            left = self._remaining_restarts - 1
            what += f": all start again from the last checkpoint (restarts left: {left})"
        else:
            self._failed = status
            self._remaining_restarts = 0
        if status < 0 or (again and status != TRY_AGAIN):
            print(f"matinee train: {what}", file=sys.stderr)

    def _publish(self, rank: int, status: int, message: str) -> None:
        """Let ranks here and on other nodes know, in case this one died without a word."""
        group = self.get_worker_group()
        environment = RankEnvironment(
            address=group.master_addr or "",
            port=group.master_port or 0,
            restarts=self._streams.starts - 1,
            agent_store=True,
        )
        with contextlib.suppress(RuntimeError):  # the store's node may be the one that is gone
            claim(environment.open_store(watch_name(0), _GRACE_S), rank, status, message)

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
                        os.kill(pid, PASSED_ON[number])

    def _expected(self, status: int) -> bool:
        """Whether a rank ended as it should: done, or stopped on request."""
        if self.stop is None:
            return status == 0
        if self._killed:
            return True
        passed = PASSED_ON[self.stop]
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


class Streams(LogsSpecs):
    """Who may write where: rank 0 as if it had been started alone, the others to stderr only."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = 0

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        for env in envs.values():
            env["TORCHELASTIC_ERROR_FILE"] = ""
            # torch counts a node's own restarts, but not those that another node began.
            env["TORCHELASTIC_RESTART_COUNT"] = str(self.starts)
        self.starts += 1
        return LogsDest(
            stdouts={i: "" if env["RANK"] == "0" else os.devnull for i, env in envs.items()},
            stderrs=dict.fromkeys(envs, ""),
            error_files=dict.fromkeys(envs, os.devnull),
        )

    @property
    def root_log_dir(self) -> str:
        return os.devnull
