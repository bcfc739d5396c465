"""Where a network's blocks are: what is shifted, inflated, computed anew, divided among ranks.

# Note [Blocks]
timm's residual blocks carry `drop_path` on their branch (transformer blocks `drop_path1`, as they
have two), whatever their rate, and open_clip's transformer blocks have `ln_1`. Stages carry such
names too in some networks, so a block is one that contains no other.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

RESIDUAL = ("drop_path",)
ANY = ("drop_path", "drop_path1", "ln_1")


def block_names(network: nn.Module, marks: Collection[str] = RESIDUAL) -> list[str]:
    """Names of the innermost modules with one of these attributes, in the network's order."""
    names = [
        name
        for name, module in network.named_modules()
        if name and any(hasattr(module, mark) for mark in marks)
    ]
    return [name for name in names if not any(other.startswith(f"{name}.") for other in names)]


def find_blocks(network: nn.Module) -> list[nn.Module]:
    """The residual and transformer blocks of any network, in its order. See Note [Blocks]."""
    return [network.get_submodule(name) for name in block_names(network, ANY)]
