"""The training loop: fetch, forward, backward, clip, step, log, save, validate."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from matinee.data.batch import Batch
from matinee.data.epochs import EpochLoader
from matinee.data.random import integer_seed
from matinee.errors import ConfigError, MatineeError
from matinee.evaluation.run import evaluate_task
from matinee.pack.open import DataSet, open_data
from matinee.spans import Spans
from matinee.tasks.base import Step, Task
from matinee.training.config import TrainConfig
from matinee.training.optim.build import build_optimizer
from matinee.training.optim.schedule import describe, learning_rate
from matinee.training.precision import autocast, pick_device, pick_precision
from matinee.training.setup import make_loader, prepare
from matinee.training.show.terminal import Progress, Silent
from matinee.training.state.runfolder import RunFolder
from matinee.training.state.train_state import TrainState
from matinee.training.stop import StopRequest


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
    config: TrainConfig, *, resume: bool = False, progress: Progress | None = None
) -> TrainResult:
    """Run a config to its end, or continue a run that was stopped at any step.

    Args:
        resume: continue the run in `config.run.out`; its saved settings must be the same.
        progress: where to report; silent when None.

    Raises:
        ConfigError: settings that contradict each other or the data.
        ClipError: a clip cannot be read (`data.on_error="raise"`).
        MatineeError: the loss is not finite.
    """
    begin = time.perf_counter()
    say = progress or Silent()
    folder = RunFolder(config.run.out)
    device = pick_device(config.run.device)
    precision, reason = pick_precision(config.speed.precision, device)
    pack = open_data(config.data.path)
    # A run that goes on has all its weights in the checkpoint.
    goes_on = resume and folder.checkpoint_file.exists()
    setup = prepare(pack, config, device, new_weights=not goes_on)
    splits, task = setup.splits, setup.task
    parts, optim = config.optim.accumulate, config.optim
    loader = make_loader(setup, splits.train, batch_size=optim.batch_size // parts, group=parts)
    state = TrainState(task.model, build_optimizer(task.model, optim), loader)
    steps_per_epoch = len(loader) // parts
    if resume:
        _resume(folder, config, state, pack, setup.vocabulary.to_dict(), device)
    else:
        folder.create(config)
    say.start(
        total=optim.epochs * steps_per_epoch,
        headline=task.headline,
        facts=[
            f"{splits.note}; {loader.num_items} clips an epoch, {steps_per_epoch} steps",
            *setup.notes,
            describe(optim),
            f"{device}, {precision} ({reason}); {_readers(loader)}",
        ],
    )

    def save() -> None:
        _check_finite(state, folder)
        _check_weights(state, folder)
        with spans("save"):
            folder.save_checkpoint(
                {
                    "state": state.state_dict(),
                    "vocabulary": setup.vocabulary.to_dict(),
                    "source_digest": pack.meta.get("source_digest"),
                }
            )

    def validate() -> dict[str, Any] | None:
        if splits.val is None:
            return None
        batch_size = max(1, optim.batch_size // parts)
        with make_loader(setup, splits.val, batch_size=batch_size, views=(1, 1)) as val_loader:
            evaluated = evaluate_task(
                task, val_loader, setup.vocabulary, lambda: autocast(precision, device),
                should_stop=lambda: bool(stop.name),
            )  # fmt: skip
        return evaluated.metrics if evaluated is not None else None

    val: dict[str, Any] | None = None
    saved = time.perf_counter()
    spans = Spans()
    with StopRequest() as stop, loader, say:
        while state.validated < optim.epochs and not stop.name:
            epoch_end = (state.validated + 1) * steps_per_epoch
            batches = iter(loader) if state.step < epoch_end else iter(())
            window = time.perf_counter()
            task.train()
            while state.step < epoch_end and not stop.name:
                lr = learning_rate(optim, state.step, steps_per_epoch)
                _step(config, task, state, batches, lr, precision, device, spans)
                say.step(state.step)
                if state.step % config.run.log_every == 0 or state.step == epoch_end:
                    _check_finite(state, folder)
                    row = _log_row(state, lr, steps_per_epoch, time.perf_counter() - window, spans)
                    folder.log(**row)
                    say.log(row)
                    window = time.perf_counter()
                if time.perf_counter() - saved > 60 * config.run.save_minutes:
                    save()
                    saved = time.perf_counter()
            if stop.name:
                break
            due = (state.validated + 1) % config.run.eval_every == 0
            if due or state.validated + 1 == optim.epochs:
                with spans("validate"):
                    val = validate()
                if stop.name:
                    break
                if val is not None:
                    row = {
                        "kind": "val", "step": state.step, "epoch": state.validated + 1,
                        "split": splits.val, "views": "1x1", **val, "spans": spans.take(),
                    }  # fmt: skip
                    folder.log(**row)
                    say.validated(row)
            state.validated += 1
            save()
            saved = time.perf_counter()
        if stop.name:
            save()
    return TrainResult(
        out=folder.path,
        steps=state.step,
        epochs=state.validated,
        val=val or _last_val(folder),
        seconds=time.perf_counter() - begin,
        masked=state.masked,
        stopped=stop.name,
    )


def _readers(loader: EpochLoader) -> str:
    if not loader.workers:
        return "images in memory"
    one = {"processes": "process", "threads": "thread"}
    return f"{loader.workers} decoding {loader.mode if loader.workers > 1 else one[loader.mode]}"


def _step(
    config: TrainConfig,
    task: Task,
    state: TrainState,
    batches: Any,
    lr: float,
    precision: str,
    device: torch.device,
    spans: Spans,
) -> None:
    """One optimizer step over `accumulate` batches.

    Losses are sums divided by the whole batch; if clips were masked, gradients are rescaled to the
    mean over those that were read.
    """
    optim = config.optim

    def next_batch() -> Batch:
        with spans("data_wait"):
            batch: Batch = next(batches)
        return batch

    def reseed(part: int) -> None:
        torch.manual_seed(integer_seed(config.run.seed, part, state.step, "dropout"))

    step = Step(
        clips=optim.batch_size, parts=optim.accumulate, next_batch=next_batch, reseed=reseed,
        autocast=lambda: autocast(precision, device), spans=spans,
    )  # fmt: skip
    outcome = task.gradients(step)
    read = outcome.clips
    state.recent[state.step] = outcome.samples
    state.loss = outcome.loss if state.loss is None else state.loss + outcome.loss
    for name, value in outcome.sums.items():
        state.sums[name] = state.sums[name] + value if name in state.sums else value
    with spans("optimizer"):
        if read == 0:
            raise MatineeError(
                f"step {state.step + 1}: none of the batch's {optim.batch_size} clips could be "
                f"read, the last: {state.loader.failed[-1]}"
            )
        parameters = [p for p in task.parameters() if p.grad is not None]
        if read < optim.batch_size:
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad.mul_(optim.batch_size / read)
        if optim.clip_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(parameters, optim.clip_norm)
        else:
            norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        _note_bad(state, outcome.loss + norm.detach())
        for group in state.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
    state.clips += read
    state.masked += optim.batch_size - read
    state.step += 1


def _log_row(
    state: TrainState, lr: float, steps_per_epoch: int, seconds: float, spans: Spans
) -> dict[str, Any]:
    assert state.loss is not None
    row = {
        "kind": "train",
        "step": state.step,
        "epoch": state.step / steps_per_epoch,
        "loss": float(state.loss) / state.clips,
        **{name: float(value) / state.clips for name, value in state.sums.items()},
        "lr": lr,
        "clips": state.clips,
        "clips_per_s": state.clips / max(seconds, 1e-9),
        "masked": state.masked,
        "spans": spans.take(),
    }
    state.loss, state.sums, state.clips = None, {}, 0
    return row


def _note_bad(state: TrainState, value: torch.Tensor) -> None:
    """Remember on the device that this step was the first without a finite loss and gradient."""
    before = state.first_bad
    if before is None:
        before = torch.full((), -1, dtype=torch.int64, device=value.device)
    is_first = ~torch.isfinite(value) & (before < 0)
    state.first_bad = torch.where(is_first, state.step, before)


def _check_finite(state: TrainState, folder: RunFolder) -> None:
    """Stop before a loss that is not finite is logged, naming the step (from 1) and its clips."""
    step = -1 if state.first_bad is None else int(state.first_bad)
    if step >= 0:
        samples = state.recent[step]
        more = f" and {len(samples) - 16} more" if len(samples) > 16 else ""
        raise MatineeError(
            f"the loss or its gradient is not finite in step {step + 1}, on samples "
            f"{', '.join(samples[:16])}{more}: lower --optim.lr, set --optim.clip-norm, or look at "
            f"these samples; {_last_finite(folder)}"
        )
    state.recent.clear()


def _check_weights(state: TrainState, folder: RunFolder) -> None:
    """Stop before weights that are not finite are saved: a step can be too far for their range."""
    finite = torch.stack([p.isfinite().all() for p in state.model.parameters()])
    if not finite.all():
        raise MatineeError(
            f"weights are not finite after step {state.step}, though the loss still was: lower "
            f"--optim.lr or set --optim.clip-norm; {_last_finite(folder)}"
        )


def _last_finite(folder: RunFolder) -> str:
    held = folder.checkpoint_step()
    if held is None:
        return f"there is no checkpoint yet: remove {folder.path}, or take another --out"
    return (
        f"the last checkpoint, {folder.checkpoint_file}, is from step {held} and finite: start "
        f"another run from it with --model.pretrained {folder.checkpoint_file}"
    )


def _resume(
    folder: RunFolder,
    config: TrainConfig,
    state: TrainState,
    pack: DataSet,
    vocabulary: dict[str, Any],
    device: torch.device,
) -> None:
    saved = folder.config()
    for section in ("model", "task", "clip", "optim"):
        if getattr(saved, section) != getattr(config, section):
            raise ConfigError(
                f"{folder.path} was started with other settings in section {section!r}: resume "
                "with the same, or start anew with another --out"
            )
    for name in ("train_split", "val_split", "repeats"):
        if getattr(saved.data, name) != getattr(config.data, name):
            raise ConfigError(
                f"{folder.path} was started with data.{name} {getattr(saved.data, name)!r}: resume "
                "with the same, or start anew with another --out"
            )
    if saved.run.seed != config.run.seed:
        raise ConfigError(f"{folder.path} was started with seed {saved.run.seed}")
    if not folder.checkpoint_file.exists():
        folder.rewind(0, validated=False)
        return  # stopped before its first save: begin again
    checkpoint = folder.load_checkpoint()
    if checkpoint.get("source_digest") != pack.meta.get("source_digest"):
        raise ConfigError(
            f"{folder.path} was trained on another pack than {pack.path} (other videos, samples or "
            "encoding): resume with that, or start anew with another --out"
        )
    if checkpoint["vocabulary"] != vocabulary:
        raise ConfigError(f"{folder.path} was trained on other classes than this pack has")
    state.load_state_dict(checkpoint["state"], device)
    per_epoch = len(state.loader) // config.optim.accumulate
    folder.rewind(state.step, validated=state.validated * per_epoch == state.step)


def _last_val(folder: RunFolder) -> dict[str, Any] | None:
    rows = [row for row in folder.rows() if row["kind"] == "val"]
    extra = ("kind", "step", "epoch", "split", "views", "spans")
    return {k: v for k, v in rows[-1].items() if k not in extra} if rows else None
