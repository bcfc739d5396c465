"""`Batch`: what every loader hands out."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """One batch on the device. `B` is the batch size; the last batch of an evaluation is shorter.

    video: float32 [B, 3, T, H, W], normalised RGB. target: int64 [B], class index, -1 without
    label (or the rows of the `targets` given to the loader). valid: bool [B], False where a clip
    could not be read (`on_error="mask"`), `num_valid` of them True. index: int64 [B] on the CPU,
    row of the sample in the pack. samples: ids. texts: a caption of each, "" without. seeds: int64
    [B] on the CPU, from (seed, epoch, clip): whatever is drawn for a clip later starts there.
    """

    video: Tensor
    target: Tensor
    valid: Tensor
    index: Tensor
    samples: tuple[str, ...]
    num_valid: int
    texts: tuple[str, ...]
    seeds: Tensor

    def __len__(self) -> int:
        return len(self.samples)
