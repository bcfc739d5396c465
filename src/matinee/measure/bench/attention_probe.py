"""Memory and time of one attention layer or a few blocks, each measured in a process of its own.

# Note [A process for each measurement]
What a process's memory reached says little about its second measurement: allocators keep what they
have. Starting an interpreter with torch and timm takes seconds, though, so one clean process loads
them, has computed nothing, and is forked for each measurement. The memory of the copy is the
resident high-water mark above what it held with the input ready, which Linux resets on request
(/proc/self/clear_refs, "5"); large blocks go back to the system at once, as the mark counts them
(MALLOC_MMAP_THRESHOLD_). On a GPU it is the most that torch has allocated, above what was allocated
before.

# Note [What is measured of attention]
One layer is a ViT's attention on one clip, forward and backward to its input, with frozen weights:
what it takes depends on the tokens alone. Blocks (attention and MLP) are trained as in training:
they keep what gradients of the weights need; these gradients themselves are there before. Computing
blocks anew keeps the input of each and one block's activations at a time, so it shows with two
blocks or more.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from timm.layers.attention import Attention
from timm.models.vision_transformer import Block
from torch import nn

from matinee.errors import MatineeError
from matinee.measure.process import held_bytes, peak_bytes, reset_peak, wait
from matinee.models.recompute import recompute_blocks
from matinee.workers import WorkerPool

Kind = Literal["explicit", "fused", "recomputed"]
KINDS: dict[Kind, str] = {
    "explicit": "softmax of an explicit matrix",
    "fused": "scaled_dot_product_attention",
    "recomputed": "the same, blocks computed anew in the backward pass",
}


@dataclass(frozen=True)
class Probe:
    """One measurement. `blocks` 0: a lone attention layer."""

    kind: Kind
    blocks: int
    tokens: int
    width: int = 768
    heads: int = 12

    @property
    def matrix_bytes(self) -> int:
        """Of the explicit attention matrices of one layer, float32."""
        return 4 * self.heads * self.tokens**2

    @property
    def likely_bytes(self) -> int:
        """About what it will take, to leave out what does not fit: the matrix before and after
        softmax and its gradient, one kept for each block; about 34 rows of `width` a token.
        """
        rows = 4 * 34 * self.tokens * self.width * max(1, self.blocks)
        kept = max(1, self.blocks) + 3
        return rows + (kept * self.matrix_bytes if self.kind == "explicit" else 0)


@dataclass(frozen=True)
class Probed:
    """Peak bytes above what was there before, and seconds, of a forward and backward pass."""

    peak_bytes: int
    seconds: float


def run_probe(probe: Probe, device: torch.device) -> Probed:
    """In this process. See Note [What is measured of attention]."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = _network(probe).to(device)

    def run(x: torch.Tensor) -> None:
        network(x).sum().backward()
        x.grad = None

    run(torch.randn(1, 8, probe.width, device=device, requires_grad=True))  # set up once
    x = torch.randn(1, probe.tokens, probe.width, device=device, requires_grad=True)
    return Probed(_peak(run, x), _seconds(run, x))  # the second pass: the first met cold memory


def _network(probe: Probe) -> nn.Module:
    if not probe.blocks:
        layer = Attention(probe.width, probe.heads, qkv_bias=True).eval().requires_grad_(False)
        _fuse(layer, probe)
        return layer
    blocks = nn.Sequential(
        *(Block(probe.width, probe.heads, qkv_bias=True) for _ in range(probe.blocks))
    )
    for block in blocks:
        _fuse(block.attn, probe)
    if probe.kind == "recomputed":
        recompute_blocks(blocks, 1)
    return blocks.train()


def _fuse(layer: Any, probe: Probe) -> None:
    layer.fused_attn = probe.kind != "explicit"


def _peak(run: Callable[[torch.Tensor], None], x: torch.Tensor) -> int:
    reset_peak(x.device)
    before = held_bytes(x.device)
    run(x)
    return peak_bytes(x.device) - before


def _seconds(run: Callable[[torch.Tensor], None], x: torch.Tensor) -> float:
    """Of one core, spent and not passed: a busy machine disturbs that less. Passed, on a GPU."""
    if x.device.type == "cuda":
        wait(x.device)
        begin = time.perf_counter()
        run(x)
        wait(x.device)
        return time.perf_counter() - begin
    begin = time.process_time()
    run(x)
    return time.process_time() - begin


class Probes:
    """Measures probes, each in a process of its own. See Note [A process for each measurement]."""

    def __init__(self, device: torch.device) -> None:
        self._pool = WorkerPool(
            1, f"{__name__}:_Fork", (str(device),),
            environment={"MALLOC_MMAP_THRESHOLD_": str(64 * 1024), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def __call__(self, probe: Probe) -> Probed:
        """Measure one.

        Raises:
            MatineeError: it failed; the text says how, and for what.
        """
        self._pool.submit(0, probe)
        while True:
            for result in self._pool.results():
                if result.died:
                    raise MatineeError(f"measuring {probe}: {result.died}")
                if result.error is not None:
                    raise result.error
                answer: dict[str, Any] = result.value
                if "error" in answer:
                    raise MatineeError(f"measuring {probe}: {answer['error']}")
                return Probed(**answer)

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> Probes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Fork:
    """In the clean process: a copy of it for each probe."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)

    def __call__(self, probe: Probe) -> dict[str, Any]:
        ours, theirs = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(ours)
            _answer(probe, self._device, theirs)
        os.close(theirs)
        with os.fdopen(ours) as pipe:
            text = pipe.read()
        _, status = os.waitpid(pid, 0)
        if not text:
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {status}"
            return {"error": f"its process ended with {how} (often: out of memory)"}
        answer: dict[str, Any] = json.loads(text)
        return answer


def _answer(probe: Probe, device: torch.device, pipe: int) -> None:
    """In the copy; does not return."""
    status = 1
    try:
        probed = run_probe(probe, device)
        answer: dict[str, Any] = {"peak_bytes": probed.peak_bytes, "seconds": probed.seconds}
        status = 0
    except BaseException as error:
        answer = {"error": traceback.format_exception_only(error)[-1].strip()}
    os.write(pipe, json.dumps(answer).encode())
    os._exit(status)
