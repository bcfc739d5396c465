"""The examples that put the loader into other people's loops run as they stand."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.profiles import make_profile
from matinee.pack.writing.writer import write_pack

LOOPS = Path(__file__).parents[2] / "examples" / "loops"


@pytest.fixture(scope="module")
def pack(tmp_path_factory, film) -> Path:
    """12 clips of two classes."""
    folder = tmp_path_factory.mktemp("swap_in")
    videos = tuple(
        VideoFile(f"{n}.mp4", film(folder / f"{n}.mp4", frames=20, seed=n)) for n in range(12)
    )
    samples = tuple(
        Sample(v.id, v.id, label="ab"[n % 2], split="train") for n, v in enumerate(videos)
    )
    write_pack(folder / "my.pack", Annotations(videos, samples), make_profile(), workers=1)
    return folder / "my.pack"


def run(name: str, *args: object, cwd: Path) -> str:
    command = [sys.executable, str(LOOPS / f"{name}.py"), *map(str, args)]
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_loop_of_ones_own_goes_on_where_it_stopped(pack, tmp_path):
    """Two epochs at once, or one and then another: the same weights."""
    run("plain", pack, "--epochs", 2, "--batch-size", 4, "--saved", "whole.pt", cwd=tmp_path)
    part = ["--batch-size", 4, "--saved", "part.pt"]
    run("plain", pack, "--epochs", 1, *part, cwd=tmp_path)
    run("plain", pack, "--epochs", 2, *part, "--resume", cwd=tmp_path)
    a, b = (torch.load(tmp_path / f"{n}.pt", weights_only=True) for n in ("whole", "part"))
    assert a["loader"] == b["loader"] and a["loader"]["epoch"] == 2
    for name, value in a["model"].items():
        assert torch.equal(value, b["model"][name]), name


@pytest.mark.parametrize(
    ("name", "package"), [("with_lightning", "lightning"), ("with_transformers", "accelerate")]
)
def test_other_peoples_loops_take_the_loader(name, package, pack, tmp_path):
    """Every batch of both epochs is a step."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    out = run(name, pack, "--epochs", 2, "--batch-size", 4, "--out", "out", cwd=tmp_path)
    found = re.search(r"(\d+) steps, loss (\d+\.\d+)", out)
    assert found is not None and int(found[1]) == 6
