"""However a training run ends, nothing of its loader is left: processes, memory, descriptors."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from matinee.data.clips import ClipSpec
from matinee.data.loader import ClipLoader
from matinee.errors import WorkerDied
from matinee.pack.reading.reader import Pack

SPEC = ClipSpec(frames=4, sampling="dense", stride=4, size=32)
START = """
import os, sys, time
from matinee import ClipLoader, ClipSpec, Pack

def make(**more):
    return ClipLoader(Pack({path!r}), clip=ClipSpec(frames=4, size=32), batch_size=4, repeats=500,
                      **more)

def endless(loader):
    while True:
        for batch in loader:
            yield batch
"""


def make(path, **more):
    return ClipLoader(Pack(path), clip=SPEC, batch_size=4, repeats=20, **{"workers": 2} | more)


@contextlib.contextmanager
def run(path, body, **settings):
    """A script that iterates, once it has printed its workers' process ids; and its tag."""
    tag = uuid.uuid4().hex
    code = START.format(path=str(path)) + body
    env = {**os.environ, "MATINEE_TEST_TAG": tag,
           "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-c", code, *settings.get("argv", ())], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=env, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process, tag
        finally:
            if process.poll() is None:
                process.kill()


def tagged(tag):
    """Process ids that carry the tag in their environment; the dead have none."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                if tag.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
    return found


def all_gone(tag, seconds=120.0):
    deadline = time.monotonic() + seconds
    while tagged(tag):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("how", ["workers=2, threads=2", "workers=2, mode='threads'"])
def test_ctrl_c_ends_a_run_and_all_its_workers(clips_pack, how):
    """The terminal signals the whole group, in the middle of a loop nobody has guarded."""
    body = f"""
loader = make({how})
for n, batch in enumerate(endless(loader)):
    if n == 2: print('going', flush=True)
"""
    before = set(Path("/dev/shm").iterdir())
    with run(clips_pack, body) as (process, tag):
        assert process.stdout.readline() == "going\n"
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == -signal.SIGINT
        assert errors.count("Traceback") == 1 and errors.rstrip().endswith("KeyboardInterrupt")
        assert all_gone(tag)
    assert set(Path("/dev/shm").iterdir()) <= before


def test_an_exception_in_the_training_loop_ends_the_workers(clips_pack):
    """Without a with statement; then the next loader works, and neither leaves children, mappings
    or open descriptors behind."""
    body = """
before = len(os.listdir('/proc/self/fd'))
def train():
    for n, batch in enumerate(make(workers=2)):
        if n == 2:
            raise ValueError('diverged')
for _ in range(2):
    try:
        train()
    except ValueError as error:
        print(error)
with make(workers=1) as loader:
    next(iter(loader))
del loader
assert len(os.listdir('/proc/self/fd')) <= before, os.listdir('/proc/self/fd')
assert 'matinee-batches' not in open('/proc/self/maps').read()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print('no children')
"""
    with run(clips_pack, body) as (process, tag):
        out, errors = process.communicate(timeout=300)
        assert out.split("\n")[:3] == ["diverged", "diverged", "no children"], errors
        assert process.returncode == 0 and all_gone(tag)


@pytest.mark.parametrize("how", ["workers=3, threads=2", "workers=2, mode='threads'"])
def test_an_interpreter_ends_with_an_open_iterator(clips_pack, how):
    """With batches on their way, held by a global name; at once and in silence."""
    body = f"""
loader = make(prefetch=8, {how})
iterator = iter(loader)
next(iterator)
print('end', flush=True)
"""
    with run(clips_pack, body) as (process, tag):
        out, errors = process.communicate(timeout=300)
        assert (out, errors, process.returncode) == ("end\n", "", 0)
        assert all_gone(tag)


def test_workers_end_with_a_killed_run_even_if_a_fork_of_it_lives_on(clips_pack):
    """SIGKILL; a process forked from the run holds copies of all sockets."""
    body = """
loader = make(workers=3, threads=2)
next(iter(loader))
sys.stdout.flush()
if os.fork() == 0:
    os.close(1); os.close(2)
    time.sleep(600)
print(*loader._backend.pids, flush=True)
time.sleep(600)
"""
    with run(clips_pack, body) as (process, tag):
        workers = [int(pid) for pid in process.stdout.readline().split()]
        assert len(workers) == 2
        process.kill()
        process.wait()
        deadline = time.monotonic() + 120
        while set(workers) & set(tagged(tag)):
            assert time.monotonic() < deadline, "workers outlived their parent"
            time.sleep(0.1)
        for fork in tagged(tag):
            os.kill(fork, signal.SIGKILL)


def test_a_fork_of_the_run_iterates_with_workers_of_its_own(clips_pack):
    """Both give the same batches, and neither disturbs the other's workers."""
    body = """
import hashlib
def digest(batch): return hashlib.sha256(batch.video.numpy().tobytes()).hexdigest()
loader = make(workers=2)
iterator = endless(loader)
next(iterator)
read, write = os.pipe()
child = os.fork()
if child == 0:
    found = [digest(next(iterator)) for _ in range(3)]
    os.write(write, ' '.join(found).encode())
    loader.close()
    os._exit(0)
theirs = os.read(read, 10000).decode().split()
assert os.waitpid(child, 0)[1] == 0
assert theirs == [digest(next(iterator)) for _ in range(3)]
print('same')
loader.close()
"""
    with run(clips_pack, body) as (process, tag):
        out, errors = process.communicate(timeout=300)
        assert out == "same\n", errors
        assert process.returncode == 0 and all_gone(tag)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_killed_worker_is_named_with_what_it_was_reading(clips_pack, threads):
    """Its process and signal; the clips it was on, if any: here it is stopped in the middle."""
    with make(clips_pack, workers=threads, threads=threads, prefetch=4) as loader:
        iterator = iter(loader)
        next(iterator)
        (pid,) = loader._backend.pids
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match=rf"process {pid} was ended by SIGKILL") as caught:
            for _ in range(50):
                next(iterator)
    text = str(caught.value)
    assert "while it read sample" not in text or "000000.tar" in text


def test_the_clip_a_worker_died_on_is_named(clips_pack, monkeypatch):
    """Each of them, if its threads were on several."""
    with make(clips_pack, workers=2, threads=2) as loader:
        next(iter(loader))
        backend = loader._backend
        numbers = list(loader._numbers)[:2]
        backend.lost = numbers
        names = [loader._numbers[n][0].plans[loader._numbers[n][1][0]].sample for n in numbers]
        told = loader._tell_lost(backend)
        assert all(repr(name) in told for name in names) and told.count("000000.tar") == 2


def test_a_forgotten_loader_ends_its_workers(clips_pack):
    """The last reference goes in the middle of an epoch; nothing waits."""
    loader = make(clips_pack)
    next(iter(loader))
    pids = loader._backend.pids
    begin = time.monotonic()
    del loader
    assert time.monotonic() - begin < 60
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("how", ["workers=2, mode='threads'", "workers=2"])
def test_interrupts_at_any_moment_neither_hang_nor_change_the_order(clips_pack, how):
    """A timer interrupts batch after batch; the same batch comes next, until all have come."""
    body = f"""
import random, signal

def stop(number, frame):
    raise KeyboardInterrupt

plain, loader = make({how}, seed=3), make({how}, seed=3)
expected = endless(plain)
draw, found, interrupts = random.Random(0), 0, 0
signal.signal(signal.SIGALRM, stop)
while found < 40 or interrupts < 40:
    position = loader.state_dict()
    try:
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.0002, 0.03))
        batch = loader._step()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        interrupts += 1
        if loader.state_dict() != position:
            next(expected)  # it was handed out, and the interrupt came before it had a name
        if interrupts > 60:
            signal.setitimer(signal.ITIMER_REAL, 0)
            batch = loader._step()
        else:
            continue
    assert batch.samples == next(expected).samples
    found += 1
loader.close()
plain.close()
print("right", flush=True)
"""
    with run(clips_pack, body) as (process, tag):
        out, errors = process.communicate(timeout=200)
        assert out.strip().endswith("right"), errors[-2000:]
        assert process.returncode == 0 and all_gone(tag)
