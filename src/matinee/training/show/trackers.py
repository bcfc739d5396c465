"""Services that draw metrics. Where they write follows their own settings and environment variables
(WANDB_MODE, MLFLOW_TRACKING_URI, TRACKIO_DIR and so on).
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from matinee.extras import require

_PROJECT = "matinee"


@dataclass(frozen=True)
class Opening:
    """What a tracker is told of a run: folder, settings, steps done before (None: a new run), and
    the id under which it knows the run.
    """

    folder: Path
    config: dict[str, Any]
    resume_step: int | None
    known: str | None


class Tracker(Protocol):
    """Opened with an `Opening`. `id`: what to remember for a resumed run; `held`: the last step it
    has from before, or -1. All of it runs in one thread.
    """

    id: str
    held: int

    @staticmethod
    def check() -> None:
        """Raises MissingExtra without the package."""

    def __init__(self, opening: Opening) -> None: ...
    def log(self, values: dict[str, float], step: int) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in RUN/tensorboard; rows that a resumed run writes again replace the old ones."""

    held = -1

    @staticmethod
    def check() -> None:
        require("tensorboard", "tensorboard")

    def __init__(self, opening: Opening) -> None:
        from torch.utils.tensorboard import SummaryWriter

        step = opening.resume_step
        self.id = "tensorboard"
        self._writer: Any = SummaryWriter(
            str(opening.folder / self.id), purge_step=None if step is None else step + 1
        )
        if step is None:
            rows = [f"| {name} | {value} |" for name, value in flat(opening.config).items()]
            text = "\n".join(["| setting | value |", "| --- | --- |", *rows])
            self._writer.add_text("config", text, 0)

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # a killed run keeps what it told

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A run of Weights & Biases; steps are their own axis, for its step counter never goes back."""

    @staticmethod
    def check() -> None:
        require("wandb", "wandb")

    def __init__(self, opening: Opening) -> None:
        wandb: Any = require("wandb", "wandb")
        env = os.environ
        self._run = wandb.init(
            project=env.get("WANDB_PROJECT", _PROJECT),
            name=env.get("WANDB_NAME", opening.folder.resolve().name),
            dir=env.get("WANDB_DIR", str(opening.folder)),
            config=opening.config,
            id=opening.known,
            resume="allow" if opening.known else None,
            # A live view is no log: it would be recorded frame by frame.
            settings=wandb.Settings(console=env.get("WANDB_CONSOLE", "off")),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self.id = str(self._run.id)
        self.held = int(self._run.summary.get("step", -1))

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow, by default in ./mlflow.db; a resumed one is found where it was begun."""

    @staticmethod
    def check() -> None:
        require("mlflow", "mlflow")

    def __init__(self, opening: Opening) -> None:
        self._mlflow: Any = require("mlflow", "mlflow")
        known, _, where = (opening.known or "").partition(" ")
        if where and "MLFLOW_TRACKING_URI" not in os.environ:
            self._mlflow.set_tracking_uri(where)
        name = opening.folder.resolve().name
        run = self._mlflow.start_run(run_id=known or None, run_name=name)
        self._id = run.info.run_id
        # Addresses of servers may hold passwords, and are in the environment all the same.
        uri = self._mlflow.get_tracking_uri()
        self.id = f"{self._id} {uri}" if uri.startswith("sqlite:") else self._id
        self.held = -1
        if known:
            rows = self._mlflow.MlflowClient().get_metric_history(self._id, "train/loss")
            self.held = max((row.step for row in rows), default=-1)
        else:
            self._mlflow.log_params(flat(opening.config))

    def log(self, values: dict[str, float], step: int) -> None:
        self._mlflow.log_metrics(values, step=step, run_id=self._id)

    def close(self) -> None:
        self._mlflow.end_run()


class Trackio:
    """A run of trackio, by default on this machine. It does not tell what it holds: rows that a
    resumed run writes again are there twice, alike.
    """

    held = -1

    @staticmethod
    def check() -> None:
        require("trackio", "trackio")

    def __init__(self, opening: Opening) -> None:
        trackio: Any = require("trackio", "trackio")
        name = opening.folder.resolve().name
        # Runs are found again by name alone.
        self.id = opening.known or f"{name}-{secrets.token_hex(4)}"
        self._run = trackio.init(
            project=_PROJECT, name=self.id,
            config=opening.config, resume="allow", embed=False,
        )  # fmt: skip

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "trackio": Trackio,
}


def flat(config: dict[str, Any], before: str = "") -> dict[str, Any]:
    """A nested config with dotted names: optim.lr."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= flat(value, f"{before}{name}.")
        else:
            found[before + name] = value
    return found
