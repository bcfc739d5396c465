"""A task, its batches and the rules of its device, with shapes and without memory.

# Note [Without weights]
A network is built as always, but whatever its constructor makes of more than a few numbers lies on
PyTorch's meta device, which allocates nothing; the few numbers are real, since constructors read
them. Then weights and buffers are replaced by fake tensors, which say of themselves that they are
on a CPU: the backward pass of fake tensors on a GPU needs a GPU.

# Note [A GPU's rules on fake tensors]
What an operation saves depends on the device in few places, and these are imposed:

- autocast computes norms and softmax in float32 on a GPU (and saves what is that wide), on a CPU
  not;
- dropout keeps a mask of bytes on a GPU, of floats on a CPU;
- fused attention saves queries, keys, values, output and one number a row, as on a CPU; its
  backward pass on a GPU also adds up the gradient of queries in float32 beside them;
- optimizers without a fused kernel work on lists of tensors.

Sources: PyTorch's list of autocast operations; FlashAttention-2, arXiv 2307.08691, algorithm 2.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import MethodType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from matinee.data.batch import Batch
from matinee.models.layout import to_channels_last
from matinee.models.recompute import recompute_blocks
from matinee.models.shift import ShiftedConv
from matinee.tasks.base import Task
from matinee.tasks.build import build_task
from matinee.tasks.config import ClassificationConfig, ContrastiveConfig
from matinee.tasks.vocabulary import Vocabulary
from matinee.training.config import TrainConfig

Device = Literal["cuda", "cpu"]

FEW = 1024
"""Numbers that a constructor may read."""
_CPU = torch.device("cpu")
_META = torch.device("meta")
_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_CONVOLUTION = torch.ops.aten.convolution.default
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default


class _OnMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Puts new tensors of more than a few numbers on the meta device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        makes = func._schema.arguments and func._schema.arguments[0].name == "size"
        if makes and math.prod(args[0]) > FEW:
            kwargs = {**kwargs, "device": _META}
        return func(*args, **kwargs)


def build_fake(config: TrainConfig, mode: FakeTensorMode, *, classes: int) -> Task:
    """The task of a config in training mode, all its tensors fake. See Note [Without weights].

    Weights are never read: `model.pretrained` is of no account. Convolutions lie and blocks are
    recomputed as `config.speed` says.

    Args:
        classes: of the classifier.

    Raises:
        ConfigError: settings that do not fit each other.
    """
    model = replace(config.model, pretrained="none")
    names = tuple(str(number) for number in range(classes))
    with _OnMeta():  # type: ignore[no-untyped-call]
        built = build_task(
            config.task, model, frames=config.clip.frames, size=config.clip.size,
            vocabulary=Vocabulary(names, verbs=("verb",), nouns=("noun",)),
        )  # fmt: skip
    task = built.task
    recompute_blocks(task.model, config.speed.recompute)
    if config.speed.channels_last:
        to_channels_last(task, weights=config.parallel.strategy != "fsdp")
    with mode:
        _make_fake(task)
    return task.train()


def _make_fake(module: nn.Module) -> None:
    """Replace parameters and buffers by fake ones; what is shared stays shared."""
    made: dict[int, Any] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_CPU
            )
            if isinstance(tensor, nn.Parameter):
                made[id(tensor)] = nn.Parameter(made[id(tensor)], tensor.requires_grad)
        value: Tensor = made[id(tensor)]
        return value

    for part in module.modules():
        for held in (part._parameters, part._buffers):
            everything: dict[str, Any] = held
            for name, tensor in everything.items():
                if tensor is not None:
                    everything[name] = fake(tensor)


class _Seeds:
    """Of clips to be mixed, whose task reads them, which a fake tensor cannot be."""

    def __init__(self, clips: int) -> None:
        self._clips = clips

    def numpy(self) -> NDArray[np.int64]:
        return np.zeros(self._clips, dtype=np.int64)


def fake_batch(config: TrainConfig, clips: int, *, classes: int) -> Batch:
    """A micro-batch as the loader hands it out, within a fake tensor mode."""
    clip, task = config.clip, config.task
    labelled = isinstance(task, ClassificationConfig)
    seeds: Any = _Seeds(clips) if labelled else torch.zeros(clips, dtype=torch.int64)
    target = torch.zeros(clips, dtype=torch.int64)
    if isinstance(task, ClassificationConfig) and task.labels == "multi":
        target = torch.zeros(clips, classes)
    if isinstance(task, ContrastiveConfig) and task.graded:
        target = torch.zeros(clips, 2)
    return Batch(
        video=torch.zeros(clips, 3, clip.frames, clip.size, clip.size),
        target=target,
        valid=torch.ones(clips, dtype=torch.bool),
        index=torch.zeros(clips, dtype=torch.int64),
        samples=("",) * clips,
        num_valid=clips,
        texts=("a clip",) * clips,
        seeds=seeds,
    )


def follow_gpu(task: nn.Module) -> None:
    """Let norms, dropout and shifts work as on a GPU. See Note [A GPU's rules on fake tensors].

    On the modules themselves: blocks that are computed anew in the backward pass do it too.
    """
    for module in task.modules():
        # Among the module's own attributes, as recompute_blocks does it too.
        if isinstance(module, NORMS):
            vars(module)["forward"] = MethodType(_wide_norm, module)
        elif isinstance(module, nn.Dropout):
            vars(module)["forward"] = MethodType(_dropout, module)
        elif isinstance(module, ShiftedConv):
            vars(module)["forward"] = module.copied


NORMS = (nn.LayerNorm, nn.GroupNorm)
"""What autocast on a GPU computes in float32 and batch normalisation is not."""


def _wide_norm(norm: nn.Module, x: Tensor) -> Tensor:
    if not torch.is_autocast_enabled("cpu"):
        out: Tensor = type(norm).forward(norm, x)
        return out
    with torch.autocast("cpu", enabled=False):
        out = type(norm).forward(norm, x.float())
    # open_clip's norms return what they were given.
    return out.to(x.dtype) if type(norm).__module__.startswith("open_clip.") else out


def _dropout(module: nn.Dropout, x: Tensor) -> Tensor:
    if not module.training or module.p == 0:
        return x
    out: Tensor = torch.native_dropout(x, module.p, True)[0]
    return out


def workspace(device: Device, func: Any, args: Any) -> int:
    """Bytes that an operation takes beside its results while it runs.

    On a GPU the backward pass of fused attention: the gradient of queries in float32, [B, H, N, D],
    and a number a row, with N rounded up to blocks of 128 rows and D to 32. On a CPU convolutions
    (oneDNN): weights laid out anew, once forwards and twice backwards, but for 1×1 kernels, as its
    allocations show. What cuDNN takes for convolutions is part of the reserve.
    """
    if device == "cuda":
        if func is not _ATTENTION_BACKWARD:
            return 0
        batch, heads, tokens, width = args[1].shape
        rows = batch * heads * math.ceil(tokens / 128) * 128
        return int(rows * (math.ceil(width / 32) * 32 + 1) * 4)
    if func is _CONVOLUTION:
        return int(args[1].nbytes) if max(args[1].shape[2:]) > 1 else 0
    if func is _CONVOLUTION_BACKWARD:
        return 2 * int(args[2].nbytes) if max(args[2].shape[2:]) > 1 else 0
    return 0
