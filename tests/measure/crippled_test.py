"""One stage is slowed down on purpose: the verdict names it, three runs of three."""

import json
import os
import subprocess
import sys

import crippled_runs
import pytest
import slow_files
import torch
from crippled_runs import slow_copy, small_config, verdict_on

from matinee.pack.annotations import read_class_folders
from matinee.pack.writing.index import index_videos

SEEDS = (0, 1, 2)
LATENCY_S = 0.16  # several times what the rest of a step takes, also on a busy machine


def stages(found) -> list[str]:
    """Verdicts, with all that they rest on where a test fails."""
    for one in found:
        told = {stage: round(1000 * s, 1) for stage, s in one["stages"].items()}
        print(one["verdict"]["text"], told)
    return [one["verdict"]["stage"] for one in found]


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of a product wait for each other, on a busy machine longer than for a disk."""
    held = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(held)


@pytest.fixture(scope="module")
def slow_disk(clips_pack):
    """The address of the pack on a slow server."""
    command = [sys.executable, slow_files.__file__, str(clips_pack.parent), str(LATENCY_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}/{clips_pack.name}"
        server.kill()


def test_a_slow_disk_is_named(slow_disk):
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    # In a process of their own: threads that read would take the interpreter's lock from the step.
    found = [verdict_on(small_config(slow_disk, seed, mode="processes")) for seed in SEEDS]
    assert stages(found) == ["storage"] * 3
    assert found[0]["changes"][0]["flags"] == {"data.cache": "matinee-cache"}


@pytest.fixture(scope="module")
def large_files(film, tmp_path_factory):
    """Full-HD files as x264 writes them by default, read where they lie."""
    root = tmp_path_factory.mktemp("large")
    for label in ("a", "b"):
        for number in range(2):
            film(
                root / "films" / label / f"{number}.mp4", frames=16, size=(1920, 1080),
                options={"preset": "ultrafast", "x264-params": "keyint=250:bframes=3:ref=3"},
                seed=number,
            )  # fmt: skip
    index_videos(root / "large.pack", read_class_folders(root / "films", val_fraction=0), workers=1)
    return root / "large.pack"


def test_a_slow_decoder_is_named(large_files):
    found = [verdict_on(small_config(large_files, seed)) for seed in SEEDS]
    assert stages(found) == ["decode"] * 3
    assert found[0]["changes"][0]["what"].startswith("re-pack with stride")


def test_a_slow_copy_is_named(clips_pack):
    with slow_copy():
        found = [verdict_on(small_config(clips_pack, seed)) for seed in SEEDS]
    assert stages(found) == ["h2d"] * 3


def test_a_large_network_is_named(clips_pack):
    found = [verdict_on(small_config(clips_pack, seed, size=160)) for seed in SEEDS]
    assert stages(found) == ["compute"] * 3


def test_a_slow_network_and_a_slow_rank_are_named(clips_pack, tmp_path):
    slow = ["network"] * 3 + ["rank"] * 3
    jobs = [
        {"config": small_config(clips_pack, seed).to_dict(), "slow": what}
        for seed, what in zip(2 * SEEDS, slow, strict=True)
    ]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        crippled_runs.__file__, str(tmp_path / "jobs.json"), str(tmp_path / "found.json"),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert stages(found) == ["communication"] * 3 + ["stragglers"] * 3
    last = found[-1]
    assert any(change["what"].startswith("rank 1 ") for change in last["changes"])
