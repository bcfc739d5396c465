"""On a Ray cluster the same pack is made, whatever happens to its processes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from matinee.errors import ConfigError
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.profiles import make_profile
from matinee.pack.writing.engine_ray import RayEngine
from matinee.pack.writing.writer import Workforce, write_pack

PROFILE = make_profile(preset="ultrafast", chunk_seconds=1.0)
CODE = """
import json, os, signal, sys
from pathlib import Path
import ray
from matinee.pack.writing import schedule
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.profiles import make_profile
from matinee.pack.writing.writer import write_pack

schedule.SEGMENT_SECONDS = 2.0
killed = []

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def tasks():
    # Workers are children of the raylet, which is one of this process: no one else's are touched.
    for entry in Path("/proc").iterdir():
        try:
            name = (entry / "cmdline").read_bytes()
            grandparent = parent(parent(int(entry.name)))
        except (OSError, ValueError):
            continue
        if name.startswith(b"ray::") and b"_stream" in name and grandparent == os.getpid():
            yield int(entry.name)

def annotate(paths):
    videos = tuple(VideoFile(p.name, p) for p in paths)
    return Annotations(
        videos, tuple(Sample(v.id, v.id, label="a", split="train") for v in videos)
    )

def pack(out, paths, kill):
    def look(progress):
        if kill(progress):
            for pid in tasks():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    profile = make_profile(preset="ultrafast", chunk_seconds=1.0)
    report = write_pack(out, annotate(paths), profile, engine="ray", on_progress=look)
    return {"refused": [[f.path, f.reason] for f in report.refused], "videos": report.videos}

ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False,
         log_to_driver=False, logging_level="ERROR")
root, *paths = map(Path, sys.argv[1:])
once = pack(root / "ray", paths, lambda p: not killed and p.chunks >= 2)
told = {"killed": len(killed), **once}
# A source on which every process ends.
staging = root / "broken" / ".staging"
pack_of_two = [paths[-1], paths[0]]
told["broken"] = pack(
    root / "broken", pack_of_two, lambda p: list(staging.glob("*/000001*.tmp")) and p.videos == 1
)
ray.shutdown()
print(json.dumps(told))
"""


def differing(a: Path, b: Path) -> list[str]:
    trees = [
        {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        for root in (a, b)
    ]
    return sorted(n for n in trees[0] | trees[1] if trees[0].get(n) != trees[1].get(n))


def test_a_ray_cluster_makes_the_same_pack_though_its_processes_are_killed(tmp_path, film):
    """SIGKILL of all tasks in the middle; and a source on which they always end is refused."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'matinee[ray]'")
    options = {"preset": "ultrafast", "g": "25"}
    paths = [
        film(tmp_path / "long.mp4", frames=600, options=options),
        film(tmp_path / "bad.mp4", frames=10),
        film(tmp_path / "short.mp4", frames=30, seed=1),
    ]
    paths[1].write_bytes(b"no video")
    videos = tuple(VideoFile(path.name, path) for path in paths)
    samples = tuple(Sample(v.id, v.id, label="a", split="train") for v in videos)
    local = write_pack(tmp_path / "local", Annotations(videos, samples), PROFILE, workers=2)
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path), *map(str, paths)],
        capture_output=True, timeout=600, check=False,
        env={**os.environ, "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0",
             "RAY_worker_niceness": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["killed"] >= 1
    assert told["videos"] == local.videos == 2
    assert told["refused"] == [[f.path, f.reason] for f in local.refused]
    assert differing(tmp_path / "local", tmp_path / "ray") == []
    ((path, reason),) = told["broken"]["refused"]
    assert path.endswith("long.mp4") and "decoder broke down" in reason
    assert told["broken"]["videos"] == 1


def test_a_cluster_that_does_not_answer_is_named_at_once(tmp_path):
    """Not after the minutes that Ray itself tries."""
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=r"--ray-address 127\.0\.0\.1:1: no Ray cluster"):
        RayEngine(tmp_path, PROFILE, 1, "127.0.0.1:1")


def test_flags_of_the_cluster_need_the_engine():
    """--ray-address alone would silently do nothing."""
    with pytest.raises(ConfigError, match="--engine ray"):
        Workforce("local", None, "10.0.0.1:6379")
    with pytest.raises(ConfigError, match="--workers"):
        Workforce("ray", 0)
