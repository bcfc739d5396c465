"""The jobs of packing on a Ray cluster; this process writes what they send.

A job streams its chunks as objects, one by one, so a node holds a chunk at a time and needs no
shared disk to write to. The sources it must find under the same paths. An object is a few megabytes
and is dropped as soon as it is written here.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matinee.errors import ConfigError, MatineeError, first_line
from matinee.extras import require
from matinee.pack.profiles import Profile
from matinee.pack.writing.encode_job import Begun, Encoded, Item, Job, Receiver, run_job
from matinee.pack.writing.engine import Advance, Broken, Done, Event, Lost

_AHEAD = 2  # chunks that a job may have sent before they are taken
_TRIES = 3  # a source on which so many processes ended is to blame for it


class RayEngine:
    """Jobs as tasks of one core each.

    A task that was lost, with its process or its node, is given out again.

    Args:
        address: of the cluster, as `ray.init` takes it; None as it does by itself.
        workers: tasks at a time; the cluster's cores when None.

    Raises:
        ConfigError: there is no cluster at that address.
    """

    gives_again = True

    def __init__(
        self, staging: Path, profile: Profile, workers: int | None, address: str | None
    ) -> None:
        self._ray: Any = require("ray", "ray")
        self._staging, self._workers = staging, workers
        self._started = not self._ray.is_initialized()
        if self._started:
            _knock(address)
            try:
                self._ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, OSError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"--ray-address {address}: no Ray cluster answers ({first_line(error)}); start "
                    "one with 'ray start --head', or leave the address out"
                ) from None
        self._profile = self._ray.put(profile)
        self._task = self._ray.remote(
            num_cpus=1, num_returns="streaming", max_retries=0,
            _generator_backpressure_num_objects=_AHEAD,
        )(_stream)  # fmt: skip
        self._running: dict[Any, _Running] = {}
        self._deaths: dict[str, int] = {}

    @property
    def slots(self) -> int:
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        return min(self._workers or cores + 2, cores + 2)

    def submit(self, key: int, job: Job) -> None:
        receiver = Receiver(self._staging, job)
        stream = self._task.remote(receiver.job, self._profile)
        self._running[stream] = _Running(key, job, receiver)

    def events(self, timeout: float) -> Iterator[Event]:
        if not self._running:
            return
        streams = list(self._running)
        ready, _ = self._ray.wait(streams, num_returns=len(streams), timeout=0)
        if not ready:
            ready, _ = self._ray.wait(streams, num_returns=1, timeout=timeout)
        for stream in ready:
            yield from self._next(stream)

    def _next(self, stream: Any) -> Iterator[Event]:
        running = self._running[stream]
        errors = self._ray.exceptions
        try:
            item: Item = self._ray.get(next(stream))
            outcome = running.receiver.take(item)
        except errors.RayTaskError as error:
            raise MatineeError(f"packing {running.job.source} failed: {error}") from None
        except (errors.OutOfMemoryError, errors.NodeDiedError, errors.ObjectLostError) as error:
            self._end(stream)
            yield Lost(running.key, first_line(error))
            return
        except errors.RayError as error:  # the process is gone, and nobody says why
            self._end(stream)
            name = running.job.name
            self._deaths[name] = self._deaths.get(name, 0) + 1
            if self._deaths[name] < _TRIES:
                yield Lost(running.key, first_line(error))
            else:
                yield Broken(running.key, f"{_TRIES} processes ended on it")
            return
        except StopIteration:
            self._end(stream)
            yield Lost(running.key, "the task ended before its work did")
            return
        if outcome is not None:
            self._end(stream)
            yield Done(running.key, outcome)
        elif isinstance(item, Begun):
            running.expected = item.seconds
            yield Advance(running.key, 0.0, item.seconds)
        elif isinstance(item, Encoded):
            yield Advance(running.key, item.seconds, running.expected)

    def _end(self, stream: Any) -> None:
        self._running.pop(stream).receiver.stop()

    def close(self) -> None:
        for stream, running in self._running.items():
            self._ray.cancel(stream, force=True)
            running.receiver.stop()
        self._running.clear()
        if self._started:
            self._ray.shutdown()


def _knock(address: str | None) -> None:
    """See whether anyone is at HOST:PORT: Ray itself would try for minutes."""
    found = re.fullmatch(r"(?:ray://)?\[?([^\[\]]+)\]?:([0-9]{1,5})", address or "")
    if found is None:
        return
    try:
        socket.create_connection((found[1], int(found[2])), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--ray-address {address}: no Ray cluster answers ({first_line(error)}); start one "
            "with 'ray start --head', or leave the address out"
        ) from None


class _Running:
    def __init__(self, key: int, job: Job, receiver: Receiver) -> None:
        self.key, self.job, self.receiver = key, job, receiver
        self.expected = 0.0


def _stream(job: Job, profile: Profile) -> Iterator[Item]:
    """Body of a task."""
    yield from run_job(job, profile)
