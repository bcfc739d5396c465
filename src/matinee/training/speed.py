"""How fast a run is and how much memory it takes: settings that can be measured one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from matinee.errors import ConfigError


@dataclass(frozen=True)
class SpeedConfig:
    """How a step is computed. None of these changes what is learned beyond rounding, except
    `stages`.
    """

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Of matrix products and convolutions (autocast; weights stay float32). bf16: half the traffic,
    twice the units, the range of fp32; fp16: for GPUs without bf16, with a loss scale that follows
    overflows, and one host synchronisation a step; auto: bf16 on a GPU that has it."""
    tf32: bool = True
    """NVIDIA's 19-bit products where fp32 is asked for (Ampere and later): 10 bits of mantissa."""
    channels_last: bool = True
    """Convolutions, 2-D and 3-D, with channels innermost, as tensor cores read them (under FSDP
    features alone: it cannot divide such weights)."""
    compile: Literal["none", "default", "reduce-overhead", "max-autotune"] = "none"
    """torch.compile: fuses elementwise work; pays after minutes of compiling. reduce-overhead
    replays CUDA graphs: for small batches, whose kernels start slower than they run; max-autotune
    also times matrix kernels."""
    fused: bool = True
    """One kernel updates all weights, where the optimizer has one (SGD, Adam, AdamW)."""
    recompute: int = 0
    """Compute every n-th block anew in the backward pass instead of keeping its activations: 1 for
    least memory, at about a third more arithmetic (arXiv 1604.06174); 0 keeps all."""
    pinned: bool = True
    """Decode into page-locked memory, from which a GPU copies without the CPU (no effect on a
    CPU)."""
    side_stream: bool = True
    """Copy the next batch while this one trains (no effect on a CPU)."""
    spans: bool = True
    """Measure where each step's time goes; costs microseconds."""
    stages: tuple[str, ...] = ()
    """Smaller clips at first, as PART=FRAMESxSIZE[@BATCH]: "0.5=4x112@64" trains until half of the
    epochs on 4 frames of 112² in batches of 64 (rates scaled as base_batch says); after the last
    stage, clips are as --clip says (multigrid's long cycle, arXiv 1912.00998, §3)."""

    def __post_init__(self) -> None:
        if self.recompute < 0:
            raise ConfigError(f"--speed.recompute {self.recompute}: 0 or more")
