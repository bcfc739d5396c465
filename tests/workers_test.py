"""The pool of worker processes: every job is answered, every death is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from matinee.errors import MediaError
from matinee.workers import Result, WorkerPool

TARGET = """
import os, signal, threading, time
from matinee.errors import MediaError

class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")

class Target:
    def __init__(self, base=0):
        self.base = base
        self.barrier = threading.Barrier(3)
    def __call__(self, job):
        what, *rest = job if isinstance(job, tuple) else (job,)
        if what == "add":
            return self.base + rest[0]
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "exit":
            os._exit(3)
        if what == "sleep":
            time.sleep(rest[0])
        if what == "media":
            raise MediaError("no picture in it")
        if what == "odd":
            raise Odd(1, 2)
        if what == "meet":
            self.barrier.wait(60)
        if what == "zeros":
            return bytes(rest[0])
        return os.getpid()
"""


@pytest.fixture
def target(tmp_path, monkeypatch) -> str:
    """A module of its own, importable by workers and by nobody else's tests."""
    (tmp_path / "pool_target.py").write_text(TARGET)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "pool_target:Target"


def collect(pool: WorkerPool, count: int, **options) -> list[Result]:
    found: list[Result] = []
    give_up = time.monotonic() + 30  # instead of hanging; far beyond what it takes
    while time.monotonic() < give_up:
        found += pool.results(1.0, **options)
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} of {count} results")


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process that is not our child ends within some time."""
    for _ in range(int(seconds * 50)):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


def test_every_job_is_answered_once(target):
    """600 jobs, more than the socket holds at once, on two workers."""
    with WorkerPool(2, target, (100,)) as pool:
        for number in range(600):
            pool.submit(number, ("add", number))
        found = collect(pool, 600)
    assert sorted(r.job for r in found) == list(range(600))
    assert all(r.value == 100 + r.job and not r.died and r.error is None for r in found)


def test_large_jobs_and_results_travel_whole(target):
    """Payloads near the limit queue up in the parent; results may be megabytes."""
    with WorkerPool(1, target) as pool:
        for number in range(20):
            pool.submit(number, ("add", number, bytes(120_000)))
        assert sorted(r.value for r in collect(pool, 20)) == list(range(20))
        pool.submit(99, ("zeros", 5_000_000))
        (result,) = collect(pool, 1)
        assert result.value == bytes(5_000_000)


def test_a_job_beyond_128_kib_is_refused_by_the_caller(target):
    """With its size, and the pool goes on."""
    with WorkerPool(1, target) as pool:
        with pytest.raises(ValueError, match="131072"):
            pool.submit(7, bytes(128 * 1024))
        pool.submit(8, ("add", 1))
        assert collect(pool, 1)[0].job == 8


def test_an_exception_travels_with_its_type_and_traceback(target):
    with WorkerPool(1, target) as pool:
        pool.submit(1, "media")
        (result,) = collect(pool, 1)
        assert isinstance(result.error, MediaError) and str(result.error) == "no picture in it"
        assert "pool_target" in result.trace and not result.died
        pool.submit(2, ("add", 5))
        assert collect(pool, 1)[0].value == 5


def test_an_exception_that_cannot_be_pickled_travels_as_text(target):
    with WorkerPool(1, target) as pool:
        pool.submit(1, "odd")
        (result,) = collect(pool, 1)
        assert "1 and 2" in str(result.error)


@pytest.mark.parametrize(("how", "words"), [("die", "SIGKILL"), ("exit", "status 3")])
def test_a_dead_worker_is_reported_with_its_job(target, how, words):
    """How it ended, and on what."""
    with WorkerPool(1, target) as pool:
        pool.submit(5, how)
        (result,) = collect(pool, 1)
    assert result.job == 5 and words in result.died


def test_jobs_sent_together_are_each_answered(target):
    """More of them than one message can carry, beside single ones."""
    with WorkerPool(2, target) as pool:
        pool.submit_together([(n, ("add", n, b"x" * 10_000)) for n in range(50)])
        pool.submit(50, ("add", 50))
        found = collect(pool, 51)
    assert sorted((r.job, r.value) for r in found) == [(n, n) for n in range(51)]


def test_threads_of_a_worker_work_at_the_same_time(target):
    """Three jobs that wait for each other, in one process; then 300 more, each answered once."""
    with WorkerPool(1, target, threads=3) as pool:
        for number in range(3):
            pool.submit(number, ("meet",))
        assert {result.value for result in collect(pool, 3)} == set(pool.pids)
        for number in range(300):
            pool.submit(number, ("add", number))
        found = collect(pool, 300)
    assert sorted((r.job, r.value) for r in found) == [(n, n) for n in range(300)]


def test_a_dead_worker_of_several_threads_is_reported_with_all_its_jobs(target):
    """Two of them sleep while the third ends the process."""
    with WorkerPool(1, target, threads=3) as pool:
        for number in range(2):
            pool.submit(number, ("sleep", 600))
        time.sleep(0.2)
        pool.submit(7, "die")
        found = collect(pool, 3)
    assert sorted(result.job for result in found) == [0, 1, 7]
    assert all("SIGKILL" in result.died for result in found)


def test_a_file_beside_the_script_cannot_break_the_start_of_workers(target, tmp_path, monkeypatch):
    """Named as a module that each interpreter begins with, in a folder that modules come from."""
    (tmp_path / "encodings.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "codecs.py").write_text("raise RuntimeError('imported')")
    with WorkerPool(1, target) as pool:
        pool.submit(0, ("add", 3))
        (result,) = collect(pool, 1)
    assert result.value == 3


def test_variables_reach_the_workers_alone(target, monkeypatch):
    """Besides those of this process."""
    monkeypatch.setenv("MATINEE_KEPT", "a")
    with WorkerPool(1, target, environment={"MATINEE_GIVEN": "b"}) as pool:
        pool.submit(0, "pid")
        collect(pool, 1)
        given = Path(f"/proc/{pool.pids[0]}/environ").read_bytes()
    assert b"MATINEE_GIVEN=b\0" in given and b"MATINEE_KEPT=a\0" in given
    assert "MATINEE_GIVEN" not in os.environ


def test_a_dead_worker_is_replaced_if_asked(target):
    """The jobs behind the deadly ones are still done, by others."""
    with WorkerPool(2, target) as pool:
        first = set(pool.pids)
        for number in range(40):
            pool.submit(number, "die" if number % 10 == 3 else ("add", number))
        found = collect(pool, 40, restart=True)
        assert len(pool.pids) == 2 and set(pool.pids) != first
    dead = sorted(r.job for r in found if r.died)
    assert dead == [3, 13, 23, 33]
    assert sorted(r.value for r in found if not r.died) == [n for n in range(40) if n % 10 != 3]


def test_an_idle_worker_that_is_killed_from_outside_is_reported(target):
    """job is -1: it was on none."""
    with WorkerPool(1, target) as pool:
        pool.submit(0, ("add", 0))
        collect(pool, 1)
        os.kill(pool.pids[0], signal.SIGKILL)
        (result,) = collect(pool, 1)
        assert result.job == -1 and "SIGKILL" in result.died
        assert pool.pids == []


def test_a_target_that_does_not_exist_is_a_death_not_a_hang(target, capfd):
    with WorkerPool(1, "pool_target:Missing") as pool:
        (result,) = collect(pool, 1)
        assert result.died and result.job == -1
    assert "Missing" in capfd.readouterr().err


def test_nothing_finished_in_time_is_no_result(target):
    with WorkerPool(1, target) as pool:
        pool.submit(0, ("sleep", 30))
        assert list(pool.results(0.05)) == []


def test_closing_ends_all_workers_busy_or_not(target):
    """Also those in the middle of a long job, and with jobs still queued."""
    pool = WorkerPool(2, target)
    for number in range(6):
        pool.submit(number, ("sleep", 600))
    pids = pool.pids
    pool.close()
    pool.close()
    assert all(gone(pid, 0.1) for pid in pids)


def test_a_forgotten_pool_ends_its_workers(target):
    """The last reference goes, and so do the processes."""
    pool = WorkerPool(1, target)
    pids = pool.pids
    del pool
    assert all(gone(pid) for pid in pids)


def test_workers_end_when_their_parent_is_killed(target):
    """kill -9 of the parent leaves nobody behind, idle or with jobs queued."""
    code = (
        "import sys, time\n"
        "from matinee.workers import WorkerPool\n"
        f"pool = WorkerPool(2, {target!r})\n"
        "for n in range(50): pool.submit(n, ('sleep', 0.05))\n"
        "print(*pool.pids, flush=True)\n"
        "time.sleep(600)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
        parent.wait()
    assert all(gone(pid) for pid in pids)


def test_workers_import_nothing_heavy():
    """The packing target brings neither torch nor this process's modules."""
    code = (
        "import sys, matinee.pack.writing.encode_job, matinee.pack.reading.clip\n"
        "import matinee.data.decode_job\n"
        "print([m for m in ('torch', 'rich', 'tyro', 'timm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_workers_are_no_pool(target):
    with pytest.raises(ValueError, match="at least 1"):
        WorkerPool(0, target)
