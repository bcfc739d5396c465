"""What this process holds on a device, and held at most: for benchmarks that measure memory."""

from __future__ import annotations

import gc
from pathlib import Path

import torch

from matinee.errors import MatineeError


def reset_peak(device: torch.device) -> None:
    """Let `peak_bytes` begin anew with what is held now, without garbage.

    Raises:
        MatineeError: the kernel does not reset the mark (/proc/self/clear_refs, "5"; proc(5)).
    """
    gc.collect()
    if device.type == "cuda":
        wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        raise MatineeError(
            f"the mark of peak memory cannot be reset ({error}): memory is measured on Linux alone"
        ) from None


def peak_bytes(device: torch.device) -> int:
    """Most memory since the mark was reset, in bytes: of tensors on a GPU, else of the whole
    process (VmHWM; what getrusage tells begins with the peak of the process that started this one).

    Raises:
        MatineeError: the system does not tell.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _status("VmHWM")


def held_bytes(device: torch.device) -> int:
    """What is held now, in bytes: by tensors on a GPU, else by the whole process (VmRSS).

    Raises:
        MatineeError: the system does not tell.
    """
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return _status("VmRSS")


def wait(device: torch.device) -> None:
    """Until a GPU has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _status(name: str) -> int:
    """Bytes that the kernel counts for this process under a name."""
    file = Path("/proc/self/status")
    for line in file.read_text().splitlines() if file.exists() else ():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise MatineeError(f"{file} tells no {name}: memory is measured on Linux alone")
