"""What a system does to open packs: forks, few file handles."""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from wild import annotate

from matinee.pack.profiles import make_profile
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.index import index_videos
from matinee.pack.writing.writer import write_pack

MANY = 1100


@pytest.fixture(scope="module")
def pack_folder(tmp_path_factory, film) -> Path:
    """Three films, packed."""
    root = tmp_path_factory.mktemp("forks")
    films = [film(root / f"{n}.mp4", frames=24, size=(64, 48), seed=n) for n in range(3)]
    write_pack(root / "pack", annotate(*films), make_profile(preset="ultrafast"), workers=1)
    return root / "pack"


def in_child(work) -> str:
    """What `work()` returns in a forked child; the test fails if the child hangs or dies."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.write(writing, work().encode())
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], 60)
        if not ready:
            os.kill(child, signal.SIGKILL)
        assert ready, "the child hangs"
        answer = os.read(reading, 1 << 16).decode()
    finally:
        os.close(reading)
        _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    return answer


def test_a_pack_opened_before_a_fork_reads_right_on_both_sides(pack_folder):
    """The child shares file handles and a decoder's memory with its parent."""
    pack = Pack(pack_folder)
    expected = [pack.read(index, [3, 9, 17], pixels="i420") for index in range(3)]

    def read() -> str:
        for turn in range(3):
            for index in (2, 0, 1):
                clip = pack.read(index, [3, 9, 17], pixels="i420")
                if not np.array_equal(clip, expected[index]):
                    return f"turn {turn}: sample {index} differs"
        return "the same"

    assert in_child(read) == "the same"
    assert read() == "the same"


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_a_loader_opened_before_a_fork_works_or_says_why_not(mode, pack_folder):
    """Run in a process without torch's own threads; the parent goes on undisturbed."""
    code = textwrap.dedent(
        f"""
        import os, select, sys
        import torch
        torch.set_num_threads(1)
        from matinee.data.clips import ClipSpec
        from matinee.data.loader import ClipLoader
        from matinee.errors import MatineeError
        from matinee.pack.reading.reader import Pack

        def loader():
            return ClipLoader(
                Pack({str(pack_folder)!r}), clip=ClipSpec(frames=4, stride=2, size=32),
                batch_size=1, workers=1, mode={mode!r}, seed=3, pinned=False,
            )

        with_fork, alone = loader(), loader()
        first = next(iter(with_fork))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                batches = [batch.video.sum().item() for batch, _ in zip(with_fork, range(2))]
                os.write(writing, repr(batches).encode())
            except (MatineeError, RuntimeError) as error:
                os.write(writing, f"refused: {{error}}".encode())
            os._exit(0)
        ready, _, _ = select.select([reading], [], [], 40)
        if not ready:
            os.kill(child, 9)
        os.waitpid(child, 0)
        print("child:", os.read(reading, 4096).decode() if ready else "hangs")
        rest = [first] + [batch for batch, _ in zip(with_fork, range(2))]
        same = [torch.equal(a.video, b.video) for a, b in zip(rest, alone)]
        print("parent:", same)
        with_fork.close(); alone.close()
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    child, parent = done.stdout.splitlines()[-2:]
    assert "False" not in parent and parent.count("True") == 3
    assert "hangs" not in child and child != "child: "


def test_more_files_than_a_process_may_open(tmp_path, film):
    """1,100 indexed files, read at random by a loader's worker that may open 256."""
    one = film(tmp_path / "films" / "0000.mp4", frames=8, size=(32, 32), options={"g": "4"})
    for number in range(1, MANY):
        shutil.copyfile(one, one.with_name(f"{number:04d}.mp4"))
    paths = sorted(one.parent.iterdir())
    index_videos(tmp_path / "index", annotate(*paths))
    code = textwrap.dedent(
        f"""
        import numpy as np
        from matinee.data.clips import ClipSpec
        from matinee.data.loader import ClipLoader
        from matinee.pack.reading.reader import Pack

        pack = Pack({str(tmp_path / "index")!r})
        assert len(pack) == {MANY}
        expected = pack.read(0, [0, 3, 7])
        for sample in np.random.default_rng(0).permutation(len(pack))[:600].tolist():
            assert np.array_equal(pack.read(sample, [0, 3, 7]), expected), sample
        seen = 0
        with ClipLoader(
            pack, clip=ClipSpec(frames=2, stride=2, size=32), batch_size=50, workers=1, pinned=False
        ) as loader:
            for batch in loader:
                assert batch.num_valid == 50
                seen += 50
        print(seen)
        """
    )

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=False,
        preexec_fn=few_files,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) == MANY
