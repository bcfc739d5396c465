"""The training loop: fetch, forward, backward, clip, step, log, save, validate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matinee.training.config import TrainConfig
from matinee.training.device_spans import spans_on
from matinee.training.optim.schedule import learning_rate, momentum
from matinee.training.parallel.guard import guarded
from matinee.training.parallel.ranks import start_ranks
from matinee.training.session import Session, open_session
from matinee.training.show.progress import Progress, Silent
from matinee.training.state.runfolder import RunFolder
from matinee.training.stop import SIGNALS, StopRequest


@dataclass(frozen=True)
class TrainResult:
    """How a run ended. `val` holds the last validation's metrics, None without a split.

    `stopped` names the signal that ended it early; the run then resumes with `resume=True`.
    """

    out: Path
    steps: int
    epochs: int
    val: dict[str, Any] | None
    seconds: float
    masked: int
    stopped: str


def train(
    config: TrainConfig,
    *,
    resume: bool | Literal["auto"] = False,
    progress: Progress | None = None,
) -> TrainResult:
    """Run a config to its end, or continue a run that was stopped at any step.

    Under torchrun or Slurm this process is one of several ranks, and all must call this.

    Args:
        resume: continue the run in `config.run.out`, whose settings must be the same; "auto":
            continue it if there is one. A run that torchrun restarts always continues.
        progress: where rank 0 reports to; silent when None.

    Raises:
        ConfigError: settings that contradict each other or the data.
        ClipError: a clip cannot be read (`data.on_error="raise"`).
        MatineeError: the loss is not finite.
    """
    begin = time.perf_counter()
    with (
        start_ranks(config.run.device, config.parallel.timeout_s) as ranks,
        guarded(ranks, config.parallel.timeout_s) as pulse,
    ):
        say = progress if progress is not None and ranks.is_main else Silent()
        spans = spans_on(ranks.device, on=config.speed.spans, pulse=pulse)
        session = open_session(config, ranks, say, spans, resume=resume)
        with session, say:
            stopped, val = run_loop(session)
            last = ranks.on_main(lambda: val or _last_val(session.folder))
    state = session.state
    return TrainResult(
        out=session.folder.path, steps=state.step, epochs=state.validated, val=last,
        seconds=time.perf_counter() - begin, masked=state.masked, stopped=stopped,
    )  # fmt: skip


def run_loop(session: Session) -> tuple[str, dict[str, Any] | None]:
    """To the last epoch, or until a rank gets a signal: its name, and the last validation."""
    config, state, timeline = session.config, session.state, session.timeline
    run, optim, runner, ranks = config.run, config.optim, session.runner, session.ranks
    val: dict[str, Any] | None = None
    stopped = ""
    with StopRequest(launched=ranks.world > 1) as stop:
        while state.validated < timeline.epochs and not stopped:
            epoch = state.validated
            end, clips = timeline.start(epoch + 1), timeline.stage(epoch).batch_size
            batches = session.batches(epoch) if state.step < end else iter(())
            window = time.perf_counter()
            session.setup.task.train()
            while state.step < end and not stopped:
                done = timeline.progress(state.updates)
                lr = learning_rate(optim, done, timeline.steps(int(done)), clips)
                stepped = runner(
                    batches, clips=clips, number=state.step, lr=lr, momentum=momentum(optim, done),
                    signals=(*_sent(stop), session.save_is_due()),
                )  # fmt: skip
                session.done(stepped, clips)
                session.say.step(state.step)
                if state.step % run.log_every == 0 or state.step == end:
                    session.log(session.train_row(lr, time.perf_counter() - window))
                    window = time.perf_counter()
                *sent, save_due = stepped.signals
                stopped = _name(sent) if ranks.world > 1 else stop.name
                if save_due or (run.save_steps and state.step % run.save_steps == 0):
                    session.save()
            best = False
            if not stopped and (epoch + 1 == timeline.epochs or (epoch + 1) % run.eval_every == 0):
                val = session.validate(lambda: bool(_agreed(stop, session)))
                stopped = _agreed(stop, session)
                if val is not None and not stopped:
                    best = session.is_best(val)
                    session.log(session.val_row(val))
            if not stopped:
                state.validated += 1
                session.save(best=best)
        if stopped:
            session.save(wait=True)
            ranks.barrier()  # ranks end together: one that is gone would be missed by the others
    return stopped, val


def _sent(stop: StopRequest) -> tuple[bool, ...]:
    return tuple(stop.name == signal.name for signal in SIGNALS)


def _name(sent: Sequence[int]) -> str:
    """The signal that any rank got."""
    return next((s.name for s, count in zip(SIGNALS, sent, strict=True) if count), "")


def _agreed(stop: StopRequest, session: Session) -> str:
    """The signal that any rank got so far; a collective."""
    session.runner.spans.pulse.arrivals += 1
    return _name(session.ranks.add_up(_sent(stop)).result())


def _last_val(folder: RunFolder) -> dict[str, Any] | None:
    rows = [row for row in folder.rows() if row["kind"] == "val"]
    extra = ("kind", "step", "epoch", "split", "views", "spans", "best")
    return {k: v for k, v in rows[-1].items() if k not in extra} if rows else None
