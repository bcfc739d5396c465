"""Peak memory of joint attention against the number of tokens: fused and with an explicit matrix.

One attention layer of ViT-B (width 768, 12 heads, one clip, float32), forward and backward to its
input, in a fresh process for each measurement. Memory is the process's resident high-water mark
above what it held with the input ready, which Linux resets on request (/proc/self/clear_refs,
"5"). The weights are frozen, so that what is measured depends on the tokens alone. Seconds are
one core's, spent and not passed, the median of a few runs: a busy machine disturbs them less.

The exponent is the slope over the last doubling of tokens, where what does not depend on their
number, or on its square, weighs least; `fit` is the least-squares slope over all.

Tokens: 197 is an image of 224² at patch 16, 1568 a VideoMAE clip of 16 frames in tubelets of 2,
3136 one of 16 frames singly, 6272 one of 32.

    python benchmarks/attention_memory.py --json benchmarks/results/attention_memory.json
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

from matinee.measure import machine

WIDTH, HEADS, RUNS = 768, 12, 3
TOKENS = (197, 392, 784, 1568, 3136, 6272)
KINDS = {"fused": "scaled_dot_product_attention", "explicit": "softmax of an explicit matrix"}
MIB = 2**20


def measure(kind: str, tokens: int) -> dict[str, Any]:
    """In this process: peak bytes and seconds of one forward and backward pass."""
    import torch
    from timm.layers import Attention

    torch.set_num_threads(1)
    layer = Attention(WIDTH, HEADS, qkv_bias=True).eval().requires_grad_(False)
    layer.fused_attn = kind == "fused"

    def run(x: torch.Tensor) -> None:
        layer(x).sum().backward()
        x.grad = None

    run(torch.randn(1, 8, WIDTH, requires_grad=True))  # what libraries set up once
    x = torch.randn(1, tokens, WIDTH, requires_grad=True)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    run(x)
    peak = status("VmHWM") - before
    seconds = []
    for _ in range(RUNS):
        start = time.process_time()
        run(x)
        seconds.append(time.process_time() - start)
    return {"tokens": tokens, "mib": round(peak / MIB, 2), "seconds": round(median(seconds), 4)}


def status(name: str) -> int:
    """Bytes that the kernel counts for this process under a name."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {name}: this needs Linux")


def in_fresh_process(kind: str, tokens: int) -> dict[str, Any]:
    """`measure` there; large blocks go back to the system at once, as the mark counts them."""
    command = [sys.executable, __file__, "--measure", kind, str(tokens)]
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(64 * 1024)}
    out = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(out)
    return result


def exponents(rows: list[dict[str, Any]], what: str) -> dict[str, float]:
    """Slopes of log(what) over log(tokens)."""
    x = [math.log(row["tokens"]) for row in rows]
    y = [math.log(row[what]) for row in rows]
    fit, last = linear_regression(x, y).slope, (y[-1] - y[-2]) / (x[-1] - x[-2])
    return {"last_doubling": round(last, 3), "fit": round(fit, 3)}


def plot(results: dict[str, Any], path: Path) -> None:
    """Memory and time over tokens, both axes logarithmic."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "matinee", "svg.fonttype": "none"})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    panels = (("mib", "peak memory, MiB"), ("seconds", "forward and backward, s of one core"))
    for axis, (what, label) in zip(axes, panels, strict=True):
        for kind, marker in zip(KINDS, "os", strict=True):
            rows = results[kind]["measured"]
            slope = results[kind]["exponent"][what]["last_doubling"]
            x, y = [r["tokens"] for r in rows], [r[what] for r in rows]
            axis.plot(x, y, marker=marker, label=f"{kind}: tokens^{slope:.2f}")
        axis.set(xscale="log", yscale="log", xlabel="tokens", ylabel=label)
        axis.set_xticks(TOKENS, [str(n) for n in TOKENS])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.suptitle("One attention layer of ViT-B on one clip (CPU, float32)", fontsize=11)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write results here, and a plot beside as .svg")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure[0], int(args.measure[1]))))
        return
    results: dict[str, Any] = {"machine": machine.describe("torch", "timm")}
    for kind, words in KINDS.items():
        rows = []
        for tokens in TOKENS:
            rows.append(in_fresh_process(kind, tokens))
            print(f"{kind:9}", rows[-1], flush=True)
        slopes = {what: exponents(rows, what) for what in ("mib", "seconds")}
        print(f"{kind:9} memory grows with tokens^{slopes['mib']['last_doubling']}", flush=True)
        results[kind] = {"what": words, "measured": rows, "exponent": slopes}
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
        plot(results, args.json.with_suffix(".svg"))


if __name__ == "__main__":
    main()
