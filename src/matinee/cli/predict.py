"""`matinee predict`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.live import Live
from rich.text import Text

from matinee.cli.common import counting, err, out, parse, table, write_json
from matinee.errors import ConfigError, MatineeError
from matinee.evaluation.views import parse_views
from matinee.inference.live import LiveFrame, live, summarise
from matinee.inference.predict import predict

_SOON = 2.0  # seconds; what takes longer gets a progress bar


@dataclass(frozen=True)
class PredictCommand:
    """Classify video files that were never packed, or follow a stream as it comes."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    files: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Video files, and folders of videos."""
    labels: str | None = None
    """For a contrastive run: classes by name, separated by commas."""
    views: str = "3x1"
    """TEMPORALxSPATIAL clips a file whose probabilities are averaged."""
    top: int = 5
    """How many classes to show."""
    live: str | None = None
    """Follow a file, a camera (/dev/video0) or an address (rtsp://…) frame by frame, with a causal
    temporal-shift network; Ctrl-C ends it."""
    every: int | None = None
    """With --live: take every n-th frame. Default: at the pace the run was trained with."""
    device: str = "auto"
    """auto: a GPU if there is one; cpu; cuda:1."""
    json: str | None = None
    """Write the predictions to this file; - for standard output."""


def main(args: Sequence[str]) -> int:
    command = parse(PredictCommand, args, "predict")
    if command.live is not None:
        return _follow(command)
    if command.every is not None:
        raise ConfigError("--every has no effect without --live")
    labels = None
    if command.labels is not None:
        labels = [label.strip() for label in command.labels.split(",")]
    with _progress() as step:
        rows = predict(
            command.run, command.files, labels=labels, views=parse_views(command.views),
            top=command.top, device=command.device, say=err.print, on_progress=step,
        )  # fmt: skip
    write_json(command.json, rows)
    if command.json != "-":
        for row in rows:
            if "error" in row:
                continue
            shown = [[c["label"], float(c["probability"])] for c in row["classes"]]
            out.print(row["file"])
            table(["class", "probability"], shown)
    bad = [row for row in rows if "error" in row]
    for row in bad:
        err.print(f"matinee predict: {row['error']}")
    return 1 if bad else 0


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A progress bar once it is worth one."""
    started = time.monotonic()
    shown: Callable[..., None] | None = None
    with ExitStack() as stack:

        def step(done: int, total: int) -> None:
            nonlocal shown
            if shown is None and done < total and time.monotonic() - started > _SOON:
                shown = stack.enter_context(counting("predicting", "files"))
            if shown is not None:
                shown(done, total)

        yield step


def _follow(command: PredictCommand) -> int:
    """A line a frame; on a terminal one line that changes. Ctrl-C ends it with the summary."""
    if command.files:
        raise ConfigError(f"--live follows one source alone: leave out {command.files[0]}")
    if command.labels is not None:
        raise ConfigError("--labels does not go with --live, which needs a run of classification")
    assert command.live is not None
    video = live(command.run, command.live, every=command.every, device=command.device)
    said = err if command.json == "-" else out
    apart = f", {video.interval:.3f} s apart" if video.interval else ""
    err.print(f"taking {_nth(video.every)} frame{apart}: {video.why}")
    frames: list[LiveFrame] = []
    status, problem = 0, None
    with Live(console=said, auto_refresh=False) if said.is_terminal else ExitStack() as screen:
        try:
            for frame in video:
                frames.append(frame)
                line = (
                    f"{frame.seconds:8.2f} s  {frame.label}  {frame.probability:.3f}  "
                    f"{frame.milliseconds:.1f} ms"
                )
                if isinstance(screen, Live):
                    screen.update(Text(line), refresh=True)
                else:
                    said.print(line)
                    sys.stdout.flush()
        except KeyboardInterrupt:
            status = 130
        except MatineeError as error:  # what was seen until then is told all the same
            status, problem = 2, error
    summary = summarise(frames) | {"damaged": video.damaged}
    rows = [_row(frame) for frame in frames]
    about = {"source": video.source, "every": video.every, "interval_s": video.interval}
    write_json(command.json, {**about, "summary": summary, "frames": rows})
    latency = (
        f"mean {summary['mean_ms']:.1f} ms, median {summary['p50_ms']:.1f} ms, "
        f"95 % within {summary['p95_ms']:.1f} ms, longest {summary['max_ms']:.1f} ms"
        if frames
        else "no latency to tell"
    )
    damaged = f", {video.damaged} damaged ones left out" if video.damaged else ""
    said.print(f"{len(frames)} frames{damaged}; from frame to prediction {latency}")
    if problem is not None:
        raise problem
    return status


def _row(frame: LiveFrame) -> dict[str, Any]:
    return {
        "seconds": frame.seconds,
        "label": frame.label,
        "probability": frame.probability,
        "milliseconds": frame.milliseconds,
    }


def _nth(number: int) -> str:
    if number == 1:
        return "every"
    ends = {1: "st", 2: "nd", 3: "rd"}
    end = "th" if number % 100 in (11, 12, 13) else ends.get(number % 10, "th")
    return f"every {number}{end}"
