"""Start the ranks of a test, as a user would with torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path

import rank_jobs

LIMIT_S = 600


def run_ranks(world: int, jobs: list[dict], folder: Path, *, max_restarts: int = 0) -> str:
    """Run jobs (see rank_jobs.py) on `world` ranks; one rank runs in this process. What they said
    on stderr.
    """
    if world == 1:
        for job in jobs:
            rank_jobs.run(job)
        return ""
    file = folder / f"jobs-{world}.json"
    file.write_text(json.dumps(jobs))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={world}", f"--max-restarts={max_restarts}",
        rank_jobs.__file__, str(file),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:6000]
    return done.stderr
