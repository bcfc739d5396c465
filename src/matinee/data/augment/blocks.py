"""How much of a batch is worked on at once."""

from __future__ import annotations

import torch

Block = tuple[slice, slice]
"""Which clips, which of their frames."""

PIXELS = 200_000
"""Of a block on a CPU: in RGB, 2.4 MB of float32, which stay in its cache over several passes. Half
or twice as much is as fast; a clip of 16 frames of 224² at once takes 1.1 to 3 times as long, by
how much memory the process has at hand. See benchmarks/device_transforms.py."""


def blocks(clips: int, frames: int, pixels: int, device: torch.device) -> list[Block]:
    """Cut a batch; no clip is changed by what is beside it, so where it is cut changes no clip.

    On a GPU all at once: fewest kernels.

    Args:
        pixels: of a frame.
    """
    if device.type != "cpu":
        return [(slice(0, clips), slice(0, frames))]
    rows = max(1, PIXELS // (frames * pixels))
    step = min(frames, max(1, PIXELS // pixels))
    return [
        (slice(row, row + rows), slice(frame, frame + step))
        for row in range(0, clips, rows)
        for frame in range(0, frames, step)
    ]
