"""Files of weights from strangers: tensors are read, code is not run.

# Note [Stand-ins]
Published checkpoints often hold more than tensors: the options of the training run
(`argparse.Namespace`), a best accuracy (a numpy scalar), paths. Torch's `weights_only` reader
refuses such classes. None of it is needed here, so these few names are read as an empty class that
ignores whatever it is given; the real classes are never built. Any other class is refused.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from matinee.errors import ConfigError, first_line
from matinee.extras import require

# Where projects keep the tensors within a checkpoint; "module" is DeepSpeed's.
_CONTAINERS = ("state_dict", "state", "model", "module")

_BOOKKEEPING = (
    "argparse.Namespace",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "numpy.dtype",
    "pathlib.Path",
    "pathlib.PosixPath",
)


class _StandIn:
    """What is read in place of a run's bookkeeping. See Note [Stand-ins]."""

    def __new__(cls, *_args: object) -> _StandIn:
        return object.__new__(cls)

    def __setstate__(self, _state: object) -> None:
        pass


@dataclass(frozen=True)
class WeightsFile:
    """Tensors by name, and the metadata of a safetensors file (empty for others)."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Tensors by name; see `read_weights`."""
    return read_weights(path).tensors


def read_weights(path: Path) -> WeightsFile:
    """A .safetensors or torch file, without running code from it.

    The state dict may lie within a checkpoint; of a run that averaged its weights (EMA) the
    averages are taken, which are what it validated. A leading `module.` (of data parallel wrappers)
    is dropped from the names.

    Raises:
        ConfigError: no such file, or not a state dict of plain tensors.
    """
    if path.is_dir():
        inside = path / "last.pt"
        where = f"its weights are {inside}" if inside.is_file() else "give a file of weights"
        raise ConfigError(f"{path} is a folder: {where}")
    if not path.is_file():
        raise ConfigError(f"{path}: no such file of weights")
    state: Any
    metadata: dict[str, str] = {}
    try:
        if _is_safetensors(path):
            with require("safetensors", "train").safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        elif _is_torchscript(path):
            raise ConfigError(
                f"{path} is a TorchScript archive, which holds code beside the weights. If you "
                'trust it, save the weights alone: python -c "import torch; torch.save('
                f"torch.jit.load('{path.name}', 'cpu').state_dict(), '{path.stem}-weights.pt')\""
            )
        else:
            with torch.serialization.safe_globals([(_StandIn, name) for name in _BOOKKEEPING]):
                state = torch.load(path, map_location="cpu", weights_only=True)
    except (ConfigError, ImportError):
        raise
    except (KeyError, EOFError):
        raise ConfigError(f"{path} is no file of weights (safetensors or torch)") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {first_line(error)}") from None
    except Exception as error:  # pickle and safetensors errors have no common base
        code = re.search(r"GLOBAL ([\w.]+)", str(error))
        why = f"it asks to run {code[1]}, which is never done" if code else first_line(error)
        raise ConfigError(f"{path} is no file of weights: {why}") from None
    for _ in _CONTAINERS:  # they can lie in each other
        if averaged := _averaged(state):
            state = averaged
            break
        inner = (state.get(name) for name in _CONTAINERS) if isinstance(state, dict) else ()
        state = next((value for value in inner if isinstance(value, dict)), state)
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ConfigError(f"{path} holds no state dict of tensors")
    if not state:
        raise ConfigError(f"{path} holds no tensors")
    for key, value in state.items():
        _check_plain(path, key, value)
    tensors = {key.removeprefix("module."): value for key, value in state.items()}
    return WeightsFile(tensors, metadata)


def _averaged(state: Any) -> dict[str, Any] | None:
    """The averaged weights of a run's state, what is not averaged from its model; None without."""
    if not isinstance(state, dict):
        return None
    model, ema = state.get("model"), state.get("ema")
    weights = ema.get("weights") if isinstance(ema, dict) else None
    if not isinstance(model, dict) or not isinstance(weights, dict):
        return None
    return {**model, **weights}


def digest(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_safetensors(path: Path) -> bool:
    """By content: after eight bytes of length comes a JSON object."""
    with path.open("rb") as file:
        head = file.read(9)
    return path.suffix == ".safetensors" or head[8:] == b"{"


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _check_plain(path: Path, key: object, value: Tensor) -> None:
    """A dense tensor in memory that really holds as many numbers as its shape says."""
    if not isinstance(key, str):
        raise ConfigError(f"{path} holds no state dict: {key!r} is no name of a tensor")
    if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
        raise ConfigError(f"{path}: {key} is no dense tensor; only such weights can be loaded")
    # A view can repeat few numbers endlessly; copying it would fill the memory.
    if value.untyped_storage().nbytes() < value.numel() * value.element_size():
        raise ConfigError(f"{path}: {key} has shape {list(value.shape)} but not that many numbers")
