"""The command line. Each command lives in a module of its own, imported only when it is called."""

from __future__ import annotations

import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

COMMANDS = {
    "demo": "write a small set of videos, pack it, train, evaluate, report: the whole in minutes",
    "pack": "encode a folder of videos into a pack that trains fast; or make an image set",
    "index": "make a pack over videos where they lie, without encoding",
    "annotate": "replace the samples of a pack without touching its video",
    "info": "what is inside a pack; --sheet draws a contact sheet",
    "models": "which networks there are, how each becomes a video model, and what it costs",
    "import": "translate published weights, with a report of what fits",
    "train": "train a recipe on a pack, on one GPU or --gpus 8; --resume continues exactly",
    "find-lr": "raise the learning rate until the loss explodes; suggests one, with a plot",
    "tune": "search learning rate, optimizer, decay and more; resumes, runs in parallel",
    "slurm": "print a script for sbatch that trains on several machines and survives preemption",
    "eval": "top-1/5, macro F1, per class, confusion matrix; JSON and table",
    "predict": "classify video files that were never packed",
    "search": "find clips by a sentence, with a contrastive run; an HTML page of the nearest",
    "embed": "vectors of clips (and captions) from any run, as parquet or npy",
    "export": "a run as ONNX or safetensors with a model card",
    "report": "one HTML page about one or several runs",
    "diagnose": "which bottleneck holds a recipe (or your loop) up, and what to change",
    "plan": "memory, time, cores, storage and money of a run before it is rented",
    "bench": "measure this machine: loader, attention, models, scaling, all-reduce, disk",
    "reproduce": "the tables of three papers at this machine's size, beside what they published",
    "mir": "EK-100 multi-instance retrieval: mAP and nDCG of a similarity matrix",
}

_MODULES = {"eval": "evaluate", "import": "import_", "find-lr": "find_lr"}
"""Where the command's name cannot be a module's."""

HELP = """usage: matinee COMMAND [options]        matinee COMMAND --help

Train large video models fast, on the machine you have.

{commands}

From your own clips to a trained model:
  matinee pack clips/ --out my.pack                  one folder a class, or --annotations KIND:FILE
  matinee train tsm --data my.pack --out runs/a      any field: --optim.lr 0.01 --clip.frames 8
  matinee eval runs/a --views 3x1
  matinee predict runs/a some.mp4

--version prints the version; --debug behind any command shows the traceback of an error.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status.

    0: done. 1: done, but something was refused (`pack`, `index`, `predict`). 2: an error, told in
    one line. 130, 143: ended by SIGINT, SIGTERM.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        rows = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
        print(HELP.format(commands=rows), end="")
        return 0 if args else 2
    if args[0] == "--version":
        from matinee import __version__

        print(f"matinee {__version__}")
        return 0
    if args[0] not in COMMANDS:
        print(f"matinee: no command {args[0]!r}: see matinee --help", file=sys.stderr)
        return 2
    # Torch's CPU threads spin while they wait for each other; beside decoding workers, or on a
    # busy machine, they then hold the very cores the others need (measured: steps 5 times slower
    # with one core taken). Waiting passively must be asked for before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names need not be valid text
    warnings.showwarning = _show_warning
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    return _run(args[0], args[1:], debug)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """What the package itself warns of is for users: a line, without the place in the code."""
    own = category.__module__.startswith("matinee.")
    text = f"{message}\n" if own else warnings.formatwarning(message, category, filename, lineno)
    print(text, end="", file=file or sys.stderr)


def _run(name: str, args: list[str], debug: bool) -> int:
    from matinee.errors import MatineeError

    try:
        module = importlib.import_module(f"matinee.cli.{_MODULES.get(name, name)}")
        status: int = module.main(args)
        return status
    except MatineeError as error:
        if debug:
            raise
        text = " ".join(str(error).split("\n"))
        print(f"matinee {name}: {text}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if debug or error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"matinee {name}: {where}{error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"matinee {name}: stopped", file=sys.stderr)
        return 130
