"""Trying changes: each takes turns with the run as it is, to check what was expected of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import torch

from matinee.errors import MatineeError, first_line
from matinee.measure.arms import Spread, take_turns
from matinee.measure.diagnose.changes import Change
from matinee.measure.diagnose.facts import Facts
from matinee.measure.diagnose.repack import time_repacked
from matinee.measure.diagnose.stand import Stand, open_stand
from matinee.training.precision import allow_tf32

OnTurn = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Tried:
    """One change: seconds a step that it was expected to save and that it saved, with quartiles
    over rounds; `note` says why nothing was measured, or what was measured instead of steps.
    """

    what: str
    how: str
    expected_s: float | None
    measured_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def try_changes(
    stand: Stand, changes: Sequence[Change], facts: Facts | None, rounds: int, on_turn: OnTurn
) -> list[Tried]:
    """Try them one after the other; a collective.

    A second network and loader are built beside the first, so memory must hold both.

    Args:
        changes: the same on all ranks.
        facts: on rank 0.
    """
    found = []
    for number, change in enumerate(changes):
        done, total = number * 2 * rounds, len(changes) * 2 * rounds

        def told(turn: int, done: int = done, total: int = total, what: str = change.what) -> None:
            if stand.ranks.is_main:
                on_turn(done + turn, total, f"trying: {what}")

        found.append(_try(stand, change, facts, rounds, told))
    return found


def _try(
    stand: Stand, change: Change, facts: Facts | None, rounds: int, on_turn: Callable[[int], None]
) -> Tried:
    if change.pack is not None:
        return stand.ranks.on_main(lambda: _repacked(stand, change, facts, rounds, on_turn))
    if not change.flags:
        return _not(change, "nothing that can be tried here")
    if "data.cache" in change.flags:
        return _not(change, "shows from the second epoch on: train with it")
    try:
        saved = _saved(stand, change, rounds, on_turn)
    except torch.cuda.OutOfMemoryError:
        if stand.ranks.world > 1:  # the other ranks are within a step
            raise
        return _not(change, "no memory for a second network beside the first: train with it")
    except MatineeError as error:
        return _not(change, first_line(error))
    return Tried(change.what, change.how, change.saves, saved.median, saved.low, saved.high)


def _not(change: Change, why: str) -> Tried:
    return Tried(change.what, change.how, change.saves, note=why)


def _saved(stand: Stand, change: Change, rounds: int, on_turn: Callable[[int], None]) -> Spread:
    """Seconds a step, of as many clips as the run's steps have."""
    config = change.apply(stand.config)
    clips = stand.config.optim.batch_size / config.optim.batch_size
    with ExitStack() as after:
        after.callback(allow_tf32, stand.config.speed.tf32)  # which the other stand sets for all
        other = after.enter_context(open_stand(config, stand.ranks, stand.runner.spans.pulse))
        other.whole()  # kernels are prepared
        for one in (stand, other):
            one.rest()  # nobody's decoders work beside the first turn
        other.steps = max(1, round(stand.steps * clips))

        def turn(one: Stand) -> float:
            times = stand.ranks.everyone(one.whole().step_s)
            one.rest()  # its decoders would work beside the other
            return max(times)

        turns = take_turns(
            {"as it is": lambda: turn(stand), "changed": lambda: turn(other) * clips}, rounds,
            warm_up=0, on_turn=lambda done, _: on_turn(done),
        )  # fmt: skip
    pairs = zip(turns.values["as it is"], turns.values["changed"], strict=True)
    return Spread.of([before - after for before, after in pairs])


def _repacked(
    stand: Stand, change: Change, facts: Facts | None, rounds: int, on_turn: Callable[[int], None]
) -> Tried:
    """Of a few videos, packed anew: what decoders need for a clip, and what follows for a step."""
    assert change.pack is not None and facts is not None
    try:
        times = time_repacked(stand.setup, change.pack, rounds=rounds, on_turn=on_turn)
    except MatineeError as error:
        return _not(change, first_line(error))
    loading = facts.loading
    assert loading is not None
    saved = [
        facts.saved_by_loading(1 - (1 - after / before) * loading.rest_share, of="decode")
        for before, after in zip(times.before_s, times.after_s, strict=True)
    ]
    spread = Spread.of(saved)
    before, after = Spread.of(times.before_s).median, Spread.of(times.after_s).median
    note = (
        f"{times.videos} videos packed anew: decoders need {1000 * before:.3g} → "
        f"{1000 * after:.3g} ms a clip"
    )
    return Tried(
        change.what, change.how, change.saves, spread.median, spread.low, spread.high, note
    )
