"""`matinee export`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from matinee.cli.common import busy, out, parse
from matinee.inference.export import Target, export
from matinee.inference.graphs import CHECKED, TOLERANCE


@dataclass(frozen=True)
class ExportCommand:
    """Write a run's newest weights for others, with a model card: as safetensors, which
    `--model.pretrained` takes, or as ONNX graphs for any batch size, which are compared with the
    network by onnxruntime and refused if they differ (needs the extra [export]).
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    to: Target
    """safetensors or onnx."""
    out: Path
    """The folder to write, new or empty."""


def main(args: Sequence[str]) -> int:
    command = parse(ExportCommand, args, "export")
    checked = ", and running it to compare" if command.to == "onnx" else ""
    with busy(f"writing {command.run} as {command.to}{checked}"):
        done = export(command.run, command.out, to=command.to)
    for written in done.graphs:
        out.print(
            f"{written.file.name}: opset {written.opset}; differs from the network by "
            f"{written.difference:.1e} of the largest output ({TOLERANCE:.0e} allowed), batches of "
            f"{' and '.join(map(str, CHECKED))}"
        )
    out.print(f"{command.out}: {', '.join(done.files)}")
    return 0
