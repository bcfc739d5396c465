"""`matinee reproduce`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from matinee.cli.common import counting, parse
from matinee.cli.result import check_folder, keep_result, show_result
from matinee.errors import ConfigError

PAPERS = {
    "avion": "chunked reading, fused decoding, attention memory, whole steps (arXiv 2309.16669)",
    "kinetics15": "TSM against I3D, and scaling to thousands of GPUs (arXiv 1910.00932)",
    "accelerating": "accumulation, mixed precision, pinned memory on images (arXiv 2312.10024)",
}


def main(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_usage())
        return 0 if args else 2
    if args[0] not in PAPERS:
        raise ConfigError(f"no paper {args[0]!r}; there are: {', '.join(PAPERS)}")
    module = importlib.import_module(f"matinee.measure.reproduce.{args[0]}")
    options = parse(module.Options, args[1:], f"reproduce {args[0]}")
    check_folder(options.out)
    with counting(f"reproducing {args[0]}") as step:
        result = module.reproduce(options, on_step=step)
    show_result(result)
    keep_result(result, options.out, packages=("torch", "torchvision", "timm", "av"))
    return 0


def _usage() -> str:
    width = max(map(len, PAPERS))
    rows = "\n".join(f"  {name:<{width}}  {what}" for name, what in PAPERS.items())
    return (
        "usage: matinee reproduce PAPER [options]        matinee reproduce PAPER --help\n\n"
        "A paper's headline tables at a size that this machine can run, beside the published\n"
        "figures and what the planner predicts at the published size: one page, JSON, plots.\n\n"
        + rows
    )
