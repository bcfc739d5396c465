"""`matinee bench`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from matinee.cli.common import counting, parse
from matinee.cli.result import check_folder, keep_result, show_result
from matinee.errors import ConfigError

BENCHMARKS = {
    "loader": "clips a second from a pack by number of decoders, beside other readers",
    "attention": "memory and time against tokens: explicit matrix, fused, fused and recomputed",
    "models": "clips a second, GFLOPs, parameters and gradient bytes of video networks",
    "ablation": "accumulation, mixed precision, pinned memory: each alone, in pairs, together",
    "scaling": "clips a second of 1, 2, 4 … ranks, and the share that communication takes",
    "allreduce": "time of an all-reduce against message and ranks, with latency and bandwidth",
    "io": "reads of the size of clips from a disk or address: MB/s and latency, cache dropped",
}
"""One module of `measure.bench` each, with `Options` and `measure(options, *, on_step)`."""

_PACKAGES = ("torch", "timm", "av", "torchcodec", "decord", "spdl-io")


def main(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_usage())
        return 0 if args else 2
    name = args[0]
    if name not in BENCHMARKS:
        raise ConfigError(f"no benchmark {name!r}; there are: {', '.join(BENCHMARKS)}")
    module = importlib.import_module(f"matinee.measure.bench.{name}")
    options = parse(module.Options, args[1:], f"bench {name}")
    check_folder(options.out)
    with counting(f"measuring {name}") as step:
        result = module.measure(options, on_step=step)
    show_result(result)
    keep_result(result, options.out, packages=_PACKAGES)
    return 0


def _usage() -> str:
    width = max(map(len, BENCHMARKS))
    rows = "\n".join(f"  {name:<{width}}  {what}" for name, what in BENCHMARKS.items())
    return (
        "usage: matinee bench NAME [options]        matinee bench NAME --help\n\n"
        "Measures this machine. What is compared takes turns, so that a noisy machine disturbs\n"
        "all alike; tables show medians with quartiles. Each writes a page, its plots (PNG and\n"
        "SVG) and NAME.json with all numbers and the machine into --out. Defaults take about a\n"
        "minute on two cores, but for ablation, which trains. --full takes longer: the sizes that\n"
        "papers print, more turns, or whole training, as each one's help says.\n\n" + rows
    )
