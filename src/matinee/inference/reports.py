"""Reports of what was measured, beside the run that was measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from matinee.evaluation.ranks import rank
from matinee.files import write_whole
from matinee.inference.load import LoadedRun


def write_report(run: LoadedRun, parts: Sequence[str], report: dict[str, Any]) -> None:
    """Write `<run>/<part>-<part>-….json`, of several ranks by rank 0.

    The name says of which checkpoint it is, if not of the newest.
    """
    if rank() != 0:
        return
    name = "-".join([*parts, *(() if run.checkpoint == "last" else (run.checkpoint,))])
    plain = "".join(c if c.isalnum() or c in "=,.-" else "_" for c in name)
    text = json.dumps(report, indent=1) + "\n"
    write_whole(run.folder.path / f"{plain}.json", text.encode())
