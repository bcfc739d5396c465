"""What a micro-batch makes a device do, counted operation by operation without doing it.

# Note [Counting work]
The task runs forwards and backwards on fake tensors (Notes [Without weights] and [A GPU's rules on
fake tensors]), so that a network of any size is counted on any machine in seconds. Each operation
is told as arithmetic (FLOPs of products, convolutions and attention) and as traffic: the bytes of
what it reads and of what it writes, as if nothing stayed in a cache and nothing were fused, which
holds for PyTorch without torch.compile and tensors of video. Views cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from matinee.data.batch import Batch
from matinee.measure.plan.fake import build_fake, fake_batch, follow_gpu
from matinee.models.text import Tokens
from matinee.tasks.base import Task
from matinee.tasks.contrastive import ContrastiveTask
from matinee.training.config import TrainConfig
from matinee.training.precision import Precision, autocast

Kind = Literal["product", "attention", "other"]
_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Operation:
    """One operation: `flops` of arithmetic (`half`: its operands are in half precision), `traffic`
    in bytes.
    """

    name: str
    kind: Kind
    half: bool
    flops: float
    traffic: float


@dataclass(frozen=True)
class Work:
    """Of one micro-batch of `clips`: how often each operation is done, forwards and backwards.

    `parameters` are trained, `gradient_bytes` their gradients'.
    """

    clips: int
    forward: Mapping[Operation, int]
    backward: Mapping[Operation, int]
    parameters: int
    gradient_bytes: int

    def flops(self) -> float:
        """Of forward and backward pass."""
        return sum(op.flops * n for part in (self.forward, self.backward) for op, n in part.items())

    def forward_flops(self) -> float:
        return sum(op.flops * n for op, n in self.forward.items())

    def traffic(self) -> float:
        """Bytes, forwards and backwards."""
        return sum(
            op.traffic * n for part in (self.forward, self.backward) for op, n in part.items()
        )

    def kernels(self) -> int:
        return sum(self.forward.values()) + sum(self.backward.values())


@lru_cache(maxsize=32)
def count_work(
    config: TrainConfig, *, micro_batch: int, precision: Precision, classes: int
) -> Work:
    """Count a micro-batch of a run on a GPU; see Note [Counting work].

    Args:
        precision: of autocast.
        classes: outputs of a classifier.

    Raises:
        ConfigError: settings that do not fit each other.
        MissingExtra: timm or open_clip is not installed.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    task = build_fake(config, mode, classes=classes)
    forward, backward = Counter[Operation](), Counter[Operation]()
    follow_gpu(task)
    with mode, _WideSoftmax():
        batch = fake_batch(config, micro_batch, classes=classes)
        with _Operations(forward):
            loss = _loss(task, batch, precision)
        with _Operations(backward):
            loss.backward()  # type: ignore[no-untyped-call]
        trained = [p for p in task.parameters() if p.requires_grad]
        number = sum(p.numel() for p in trained)
        sizes = sum(p.numel() * p.element_size() for p in trained)
    return Work(micro_batch, forward, backward, number, sizes)


def _loss(task: Task, batch: Batch, precision: Precision) -> Tensor:
    if isinstance(task, ContrastiveTask):
        ids = torch.zeros(len(batch), task.model.text.context, dtype=torch.int64)
        with autocast(precision, torch.device("cpu")):
            video, text = task.compute((batch, Tokens(ids, 0)))
        return task._outcome(video, text, batch.valid, batch.target, 0)[0]
    with autocast(precision, torch.device("cpu")):
        loss: Tensor = task.compute(batch).loss
    return loss


class _WideSoftmax(TorchFunctionMode):
    """Attention that is not fused has its softmax in float32, as under a GPU's autocast."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _SOFTMAX and torch.is_autocast_enabled("cpu"):
            args = (args[0].float(), *args[1:])
        return func(*args, **(kwargs or {}))


_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Measures each operation that computes."""

    def __init__(self, into: Counter[Operation]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._into = into

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func._overloadpacket).removeprefix("aten.")
        if func.namespace != "aten" or func.is_view or name in _NO_WORK:
            return result
        read = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        written = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if not written:
            return result
        kind: Kind = "other"
        flops = 0.0
        if name in _ATTENTION:
            kind = "attention"
            flops = _attention_flops(read, backward="backward" in name)
        elif name in ("convolution", "convolution_backward"):
            kind = "product"
            flops = _convolution_flops(args, result, backward=name != "convolution")
        elif func._overloadpacket in flop_registry:
            kind = "product"
            flops = float(
                flop_registry[func._overloadpacket](*args, **kwargs or {}, out_val=result)
            )
        half = next((x.dtype in _HALF for x in read if x.is_floating_point()), False)
        traffic = sum(map(_bytes, read)) + sum(map(_bytes, written))
        if name in _ONLY_WRITE:
            traffic = sum(map(_bytes, written))
        elif name == "copy_":  # what is written over is not read
            traffic = sum(map(_bytes, read[1:])) + sum(map(_bytes, written))
        self._into[Operation(name, kind, half, flops, float(traffic))] += 1
        return result


_NO_WORK = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias",
    "_unsafe_view", "_reshape_alias", "lift_fresh", "is_same_size", "_local_scalar_dense",
}  # fmt: skip
_ONLY_WRITE = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}
_ATTENTION = {
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
}


def _attention_flops(read: list[Tensor], *, backward: bool) -> float:
    """Two products forwards; five backwards, where the fused kernel computes one of the first anew.

    Source: FlashAttention-2, arXiv 2307.08691, §4.1.
    """
    query, key, value = read[1:4] if backward else read[:3]
    batch, heads, queries, width = query.shape
    pairs = batch * heads * queries * key.shape[2]
    if backward:
        return float(pairs * (3 * 2 * width + 2 * 2 * value.shape[3]))
    return float(pairs * (2 * width + 2 * value.shape[3]))


def _convolution_flops(args: tuple[Any, ...], result: Any, *, backward: bool) -> float:
    """Each place of the output meets each weight of its group; backwards once for each gradient
    that is wanted. (PyTorch's own counter takes groups for more work than they are.)
    """
    gradient, places, weight = args[0], args[1], args[2]
    if not backward:
        places, weight = args[0], args[1]
    transposed = args[7] if backward else args[6]
    met = places if transposed else (gradient if backward else result)
    times = sum(x is not None for x in result[:2]) if backward else 1
    return float(2 * times * weight.numel() * met.shape[0] * met[0, 0].numel())


def _bytes(x: Tensor) -> int:
    """Those that are there: an expanded tensor has each of its values once."""
    count = 1
    for size, stride in zip(x.shape, x.stride(), strict=True):
        count *= 1 if stride == 0 and size > 1 else size
    return count * x.element_size()
