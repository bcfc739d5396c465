"""Which tokens a masked autoencoder hides, and which it reconstructs.

# Note [Masks by seed]
A clip's mask depends on its own seed alone, so batch size, neighbours and rank cannot change it. A
generator for each clip would mean a loop and a copy to the device; instead every (seed, patch)
gets the 64 bits of a mixing function, computed for the whole batch by integer operations on the
device, alike on each, and the patches with the smallest numbers are hidden: always as many.

Source: the finaliser of SplitMix64, Steele et al., OOPSLA 2014, doi 10.1145/2660193.2660195.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from matinee.errors import ConfigError

GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio, as a signed number
MIX_1 = -0x40A7B892E31B1A47
MIX_2 = -0x6B2FB644ECCEEE15


def hidden_count(patches: int, ratio: float) -> int:
    """How many of a frame's patches a ratio hides: ⌊ratio·N⌋.

    Raises:
        ConfigError: every patch, or none.
    """
    hidden = math.floor(ratio * patches + 1e-9)  # 0.29 · 100 is 28.999…
    if not 0 < hidden < patches:
        raise ConfigError(
            f"a mask ratio of {ratio} hides {hidden} of the {patches} patches of a frame: at least "
            "one must be hidden and one visible"
        )
    return hidden


def tube_mask(
    steps: int,
    patches: int,
    ratio: float,
    *,
    seeds: Sequence[int] | Tensor,
    device: torch.device | str | None = None,
) -> Tensor:
    """Hide the same patches in all T' = `steps` tubelets of a clip: bool [B, T'·N], True: hidden.

    `patches` is N, those of a frame; ⌊ratio·N⌋ of them are hidden. `seeds` is one integer a clip,
    or an int64 tensor [B].

    Raises:
        ConfigError: the ratio hides every patch, or none.
    Source: VideoMAE, arXiv 2203.12602, §3.3.
    """
    hidden = hidden_count(patches, ratio)
    keys = _hash(_as_tensor(seeds, device), patches)
    order = keys.argsort(dim=1, stable=True)
    frame = torch.zeros_like(keys, dtype=torch.bool).scatter_(1, order[:, :hidden], True)
    return frame.repeat(1, steps)


def running_cell_mask(
    steps: int,
    grid: tuple[int, int],
    ratio: float = 0.5,
    *,
    seeds: Sequence[int] | Tensor,
    device: torch.device | str | None = None,
) -> Tensor:
    """Tokens that the decoder reconstructs: bool [B, T'·N], True: reconstructed.

    In each cell of 2×2 patches, `ratio` of them; the choice moves on by one patch with each
    tubelet, from a start that the seed gives. Combine with the tube mask: the loss counts tokens
    that are hidden and reconstructed.

    Raises:
        ConfigError: the ratio is no quarter, clips would have different numbers of tokens, or a
            patch would never be reconstructed.
    Source: running cell masking, VideoMAE V2, arXiv 2303.16727, §3.2; MAR, arXiv 2207.11660.
    """
    quarters = round(ratio * 4)
    if quarters not in (1, 2, 3) or not math.isclose(ratio * 4, quarters):
        raise ConfigError(f"a decode ratio of {ratio}: cells of 2×2 patches allow 0.25, 0.5, 0.75")
    rows, columns = grid
    if (rows % 2 or columns % 2) and steps % 4:
        raise ConfigError(
            f"{rows}×{columns} patches in {steps} tubelets leave cells of 2×2 incomplete: take "
            "even sides, a multiple of 4 tubelets, or a decode ratio of 1"
        )
    if steps + quarters < 5:
        raise ConfigError(
            f"with {steps} tubelets and a decode ratio of {ratio} some patches are never "
            f"reconstructed: take at least {5 - quarters} tubelets or a decode ratio of 1"
        )
    start = _hash(_as_tensor(seeds, device), 1)[:, :, None, None] & 3  # [B, 1, 1, 1]
    device = start.device
    row = torch.arange(rows, device=device)[:, None] % 2
    column = torch.arange(columns, device=device) % 2
    step = torch.arange(steps, device=device)[:, None, None]
    phase = (2 * row + column + step + start) % 4  # [B, T', rows, columns]
    return (phase < quarters).flatten(1)


def _as_tensor(seeds: Sequence[int] | Tensor, device: torch.device | str | None) -> Tensor:
    return torch.as_tensor(seeds, dtype=torch.int64, device=device)


def _hash(seeds_B: Tensor, count: int) -> Tensor:
    """Int64 [B, count]: 64 even bits for each seed and number."""
    number = torch.arange(1, count + 1, device=seeds_B.device)
    return _mix(_mix(seeds_B)[:, None] + number * GOLDEN)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * MIX_1  # integers wrap
    x = (x ^ _shifted(x, 27)) * MIX_2
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Unsigned shift to the right; torch's keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
