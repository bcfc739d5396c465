"""What a run ran on: versions, machine, code, launcher. No names of hosts or people."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from matinee import __version__

_PACKAGES = (
    "av", "numpy", "open_clip_torch", "pyarrow", "safetensors", "sentence-transformers", "timm",
    "torchvision", "transformers", "triton",
)  # fmt: skip
# Of Slurm, torchrun and the device runtime; those that name hosts are left out.
_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS",
    "SLURM_RESTART_COUNT", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS",
)  # fmt: skip


def describe_environment() -> dict[str, Any]:
    """One session of a run, as JSON values. `git` is that of the working directory, or None."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "matinee": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "packages": _versions(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "launcher": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "command": sys.argv,
        "git": describe_git(Path.cwd()),
    }


def describe_git(folder: Path) -> dict[str, Any] | None:
    """`commit` (None before the first), `branch` (None if detached) and `dirty`: whether files that
    git knows have changes. None outside a repository, or where git does not answer.
    """
    # A repository's own settings may name a program for fsmonitor; it is not run.
    command = [
        "git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder),
        "status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, timeout=2, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.decode(errors="replace").splitlines()
    told = {line.split(" ")[1]: line.split(" ", 2)[-1] for line in lines if line[:2] == "# "}
    commit, branch = told.get("branch.oid"), told.get("branch.head")
    return {
        "commit": None if commit == "(initial)" else commit,
        "branch": None if branch == "(detached)" else branch,
        "dirty": any(line[:2] != "# " for line in lines),
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
