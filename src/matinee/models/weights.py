"""Load published image weights from files, reporting every key that did not match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from matinee.errors import ConfigError, first_line
from matinee.extras import require


def load_weights(model: nn.Module, path: str) -> str:
    """Load a timm image network's weights, leaving out a classifier of another size.

    Returns:
        A sentence on what was loaded.

    Raises:
        ConfigError: no such file, not a state dict, or keys that do not fit.
    """
    own = model.state_dict()
    state = _timm_keys(read_state_dict(Path(path)), own)
    head = model.pretrained_cfg.get("classifier", "fc")  # type: ignore[union-attr, operator]
    heads = tuple(f"{name}." for name in ((head,) if isinstance(head, str) else head))
    misfits = [k for k in state if k in own and state[k].shape != own[k].shape]
    foreign = [k for k in misfits if not k.startswith(heads)]
    if foreign:
        key = foreign[0]
        raise ConfigError(
            f"{path} is for another network: {key} is {list(state[key].shape)} there, "
            f"{list(own[key].shape)} here"
        )
    kept = {key: value for key, value in state.items() if key not in misfits}
    result = model.load_state_dict(kept, strict=False)
    missing = [k for k in result.missing_keys if not k.startswith(heads) and "num_batches" not in k]
    unexpected = [k for k in result.unexpected_keys if not k.startswith(heads)]
    if missing or unexpected:
        raise ConfigError(
            f"{path} does not fit: {len(missing)} keys are missing (e.g. {missing[:2]}), "
            f"{len(unexpected)} unknown (e.g. {unexpected[:2]})"
        )
    has_head = any(key.startswith(heads) for key in kept)
    classifier = "classifier included" if has_head else "a new classifier"
    return f"weights: {len(kept)} tensors from {path}, {classifier}"


def _timm_keys(state: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Keys of the efficientnet_pytorch layout (`_conv_stem`, `_blocks.0._bn1`, …) as timm's.

    Both projects register the same tensors in the same order, so they pair one to one; the caller
    checks the shapes.
    """
    if "_conv_stem.weight" not in state or len(state) != len(own):
        return state
    return dict(zip(own, state.values(), strict=True))


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a .safetensors or torch file, without running code from it.

    Raises:
        ConfigError: no such file, or not a state dict.
    """
    if not path.is_file():
        raise ConfigError(f"--model.pretrained {path}: no such file")
    state: Any
    try:
        if path.suffix == ".safetensors":
            state = require("safetensors.torch", "train").load_file(str(path))
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise ConfigError(f"{path} cannot be read: {first_line(error)}") from None
    except Exception as error:  # pickle and safetensors errors have no common base
        raise ConfigError(f"{path} is no file of weights: {first_line(error)}") from None
    for name in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(name), dict):
            state = state[name]
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ConfigError(f"{path} holds no state dict of tensors")
    return {key.removeprefix("module."): value for key, value in state.items()}
