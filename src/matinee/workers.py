"""A pool of clean worker processes, fed from one shared queue.

# Note [Clean workers]
Workers are started as new interpreters, never forked: a fork would copy a process that may hold
torch, CUDA or open decoders, and `multiprocessing`'s spawn would import the caller's main module
again. A worker imports only the module of its target, so it starts in a fraction of a second.

Jobs go through one SOCK_SEQPACKET socket that all workers read: every message reaches exactly one
worker, whichever is free, without a dispatcher thread in the parent (a Python thread there would
stall whenever the caller's own code holds the GIL). Results come back on a socket per worker, so
that the death of a worker is seen at once, together with the jobs it was on. Workers end when the
parent's sockets close, even after `kill -9` of the parent; should someone else hold copies of them,
such as a process forked from it, they see within seconds that they were orphaned.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matinee.errors import MatineeError

_LENGTH = struct.Struct("<Q")
_MAX_JOB = 128 * 1024  # bytes; fits the default socket buffer
_LOOK_UP = struct.pack("ll", 5, 0)  # a worker that waits for work looks for its parent, seconds


@dataclass(frozen=True)
class Result:
    """The outcome of one job: `value`, or `error` (with `trace`, the worker's traceback).

    `died` is set when the worker process ended on this job; the text says how, and `signal` by
    which signal (0 for none).
    """

    job: int
    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    died: str = ""
    signal: int = 0


class JobTooLarge(ValueError):
    """A job of more bytes than travel in one message."""


class WorkerPool:
    """`count` processes, each holding one `target` object that is called with every job's payload.

    Args:
        target: "package.module:Class"; built once in each worker as `Class(*args)`.
        args: picklable arguments.
        pass_fds: file descriptors the workers inherit under the same numbers.
        threads: of each process, that call the target at the same time.
        environment: variables that the workers get besides this process's own.
    """

    def __init__(
        self,
        count: int,
        target: str,
        args: tuple[Any, ...] = (),
        pass_fds: tuple[int, ...] = (),
        *,
        threads: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if count < 1 or threads < 1:
            raise ValueError(f"{count} workers with {threads} threads: at least 1 is needed")
        self._threads, self._environment = threads, dict(environment or {})
        self._setup = pickle.dumps((target, args))
        self._pass_fds = pass_fds
        self._jobs, self._jobs_child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._jobs.setblocking(False)
        # As many jobs as the system allows lie ready, also while the parent does not look.
        self._jobs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 20)
        self._jobs_child.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _LOOK_UP)
        self._waiting: deque[bytes] = deque()
        self._workers: dict[int, _Worker] = {}
        self._finalizer = weakref.finalize(
            self, _close, self._jobs, self._jobs_child, self._workers
        )
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        worker = _Worker(
            self._jobs_child, self._setup, self._pass_fds, self._threads, self._environment
        )
        self._workers[worker.socket.fileno()] = worker

    @property
    def pids(self) -> list[int]:
        """Process ids of the living workers."""
        return [worker.process.pid for worker in self._workers.values()]

    def submit(self, job: int, payload: Any) -> None:
        """Queue a job; `job` is any number of the caller's that comes back with the result."""
        self.submit_together([(job, payload)])

    def submit_together(self, jobs: Sequence[tuple[int, Any]]) -> None:
        """Queue jobs that one worker does one after the other; if it dies, those it had not begun
        are lost without a word.

        Each message costs the caller a moment without the interpreter's lock, and 5 ms until it has
        it back where a thread in pure Python runs beside it.
        """
        message = pickle.dumps(list(jobs), protocol=pickle.HIGHEST_PROTOCOL)
        if len(message) > _MAX_JOB:
            if len(jobs) == 1:
                raise JobTooLarge(
                    f"job {jobs[0][0]} needs {len(message)} bytes; at most {_MAX_JOB} travel"
                )
            self.submit_together(jobs[: len(jobs) // 2])
            self.submit_together(jobs[len(jobs) // 2 :])
            return
        self._waiting.append(message)
        self._flush()

    def results(self, timeout: float | None = None, *, restart: bool = False) -> Iterator[Result]:
        """Wait until something has finished (or `timeout` seconds) and yield all that has.

        A worker that died is reported as a `Result` with `died`, one for each job it was on (job
        -1 if it was on none); with `restart` another one is started in its place.
        """
        if not self._workers:
            raise MatineeError("all workers have ended")
        poll = select.poll()  # select() itself fails at file descriptor 1024
        for fd in self._workers:
            poll.register(fd, select.POLLIN)
        if self._waiting:
            poll.register(self._jobs, select.POLLOUT)
        ready = {fd for fd, _ in poll.poll(None if timeout is None else 1000 * timeout)}
        if self._jobs.fileno() in ready:
            self._flush()
        for fd in ready & set(self._workers):
            worker = self._workers[fd]
            try:
                done = worker.receive()
            except (EOFError, ConnectionError):
                del self._workers[fd]
                if restart:
                    self._start()
                died = worker.end()
                for job in sorted(worker.current) or [-1]:
                    yield Result(job, died=died, signal=max(0, -worker.process.returncode))
                continue
            for kind, job, *rest in done:
                if kind == "start":
                    worker.current.add(job)
                elif kind == "done":
                    worker.current.discard(job)
                    yield Result(job, value=rest[0])
                else:
                    worker.current.discard(job)
                    yield Result(job, error=rest[0], trace=rest[1])

    def _flush(self) -> None:
        while self._waiting:
            try:
                self._jobs.send(self._waiting[0])
            except BlockingIOError:
                return
            self._waiting.popleft()

    def close(self) -> None:
        """End all workers; jobs still queued are dropped."""
        self._finalizer()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Worker:
    def __init__(
        self,
        jobs: socket.socket,
        setup: bytes,
        pass_fds: tuple[int, ...],
        threads: int,
        more: dict[str, str],
    ) -> None:
        self.socket, theirs = socket.socketpair()
        self.current: set[int] = set()
        self._buffer = bytearray()
        environment = {**os.environ, **more}
        # Modules come from where the parent's do, and not from the current folder (-P). Workers are
        # told once their interpreter runs: with PYTHONPATH, a file beside the caller's script could
        # take the place of a module that every interpreter starts with.
        path = [folder for folder in sys.path if folder]
        code = f"import sys; sys.path[:] = {path!r}; from matinee.workers import _serve; _serve()"
        # Ctrl-C and a scheduler's signals reach the whole process group; when to end is the
        # parent's business. A blocked signal is inherited, so there is no moment without it.
        asked = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        numbers = (jobs.fileno(), theirs.fileno(), threads, os.getpid())
        before = signal.pthread_sigmask(signal.SIG_BLOCK, asked)
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", code, *map(str, numbers)],
                    pass_fds=(jobs.fileno(), theirs.fileno(), *pass_fds),
                    stdin=subprocess.DEVNULL,
                    env=environment,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.socket.sendall(_LENGTH.pack(len(setup)) + setup)

    def receive(self) -> list[tuple[Any, ...]]:
        data = self.socket.recv(1 << 20)
        if not data:
            raise EOFError
        self._buffer += data
        messages: list[tuple[Any, ...]] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if len(self._buffer) < _LENGTH.size + length:
                break
            body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
            del self._buffer[: _LENGTH.size + length]
            messages.append(pickle.loads(body))
        return messages

    def end(self) -> str:
        """Reap the process; how it ended, in words."""
        self.socket.close()
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
            hint = " (often: out of memory)" if name == "SIGKILL" else ""
            return f"process {self.process.pid} was ended by {name}{hint}"
        return f"process {self.process.pid} exited with status {code}"


def _close(jobs: socket.socket, jobs_child: socket.socket, workers: dict[int, _Worker]) -> None:
    jobs.close()
    jobs_child.close()
    for worker in workers.values():
        worker.socket.close()
    try:
        for worker in workers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(timeout=0.5)
    finally:  # also if an interrupt came
        for worker in workers.values():
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
        workers.clear()


def _serve() -> None:
    """Main of a worker process."""
    jobs = socket.socket(fileno=int(sys.argv[1]))
    results = socket.socket(fileno=int(sys.argv[2]))
    threads, parent = int(sys.argv[3]), int(sys.argv[4])
    sending = threading.Lock()

    def send(*messages: tuple[Any, ...]) -> None:
        data = b""
        for message in messages:
            body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
            data += _LENGTH.pack(len(body)) + body
        with sending:
            results.sendall(data)

    def work() -> None:
        buffer = bytearray(_MAX_JOB)
        told: list[tuple[Any, ...]] = []  # what the parent was not told yet
        while True:
            try:
                # What was done is told together with what comes next: the parent wakes up once.
                size = jobs.recv_into(buffer, 0, socket.MSG_DONTWAIT if told else 0)
            except BlockingIOError:  # nothing to do, now or for a while
                if told:
                    send(*told)
                    told = []
                elif os.getppid() != parent:
                    return
                continue
            if not size:
                if told:
                    send(*told)
                return
            for job, payload in pickle.loads(memoryview(buffer)[:size]):
                send(*told, ("start", job))
                try:
                    value = handler(payload)
                except Exception as error:
                    told = [("error", job, _portable(error), traceback.format_exc())]
                else:
                    told = [("done", job, value)]

    def work_or_end() -> None:
        """What would end a process of one thread ends this one too: its parent then hears of it."""
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionError):
                work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    with contextlib.suppress(BrokenPipeError, ConnectionError):
        target, args = pickle.loads(_read_setup(results))
        module, _, name = target.partition(":")
        handler = getattr(importlib.import_module(module), name)(*args)
        others = [threading.Thread(target=work_or_end) for _ in range(threads - 1)]
        for thread in others:
            thread.start()
        work()


def _read_setup(results: socket.socket) -> bytes:
    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = results.recv(count - len(data))
            if not part:
                raise ConnectionError
            data += part
        return data

    return exactly(_LENGTH.unpack(exactly(_LENGTH.size))[0])


def _portable(error: Exception) -> Exception:
    """The error itself if it survives pickling, else one that carries its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return MatineeError(f"{type(error).__name__}: {error}")
    return error
