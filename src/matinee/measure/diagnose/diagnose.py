"""Diagnose a recipe on its data: arms that take turns, a verdict, what to change."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

from matinee.errors import ConfigError
from matinee.measure.arms import Spread, take_turns
from matinee.measure.diagnose.changes import Change
from matinee.measure.diagnose.facts import Facts
from matinee.measure.diagnose.gather import bf16_gain, gather_facts
from matinee.measure.diagnose.readings import Reading, Round, stages_of
from matinee.measure.diagnose.stand import Stand, open_stand
from matinee.measure.diagnose.suggest import suggest
from matinee.measure.diagnose.trial import Tried, try_changes
from matinee.measure.diagnose.verdict import Diagnosis, StepTimes, typical
from matinee.tasks.contrastive import ContrastiveTask
from matinee.training.config import TrainConfig
from matinee.training.parallel.guard import guarded
from matinee.training.parallel.ranks import start_ranks

TURN_S = 1.5
"""Seconds that a turn of an arm should take."""
_FEWEST, _MOST = 2, 64  # steps of a turn
_WORTH_TRYING = 1.2  # times as fast as in fp32, that a product in bf16 must be
OnTurn = Callable[[int, int, str], None]


def diagnose(
    config: TrainConfig,
    *,
    rounds: int = 5,
    steps: int | None = None,
    what: str = "",
    tries: int = 0,
    trace: str | None = None,
    on_turn: OnTurn = lambda done, total, arm: None,
) -> Diagnosis | None:
    """Run a recipe's steps in several ways and say what holds them up. Nothing is trained.

    Under torchrun or Slurm all ranks must call this; rank 0 gets the diagnosis, the others None.

    Args:
        rounds: turns of each arm; more make the verdict surer.
        steps: of each turn; as many as take about `TURN_S` seconds when None.
        tries: how many of the best changes to try; see trial.py.
        trace: a file for a trace of a few steps; see trace.py.
        on_turn: told after each turn how many are done, of how many, and what was measured.

    Raises:
        ConfigError: settings that contradict each other or the data; fewer than 1 round or step.
        ClipError: a clip cannot be read (`data.on_error="raise"`).
    """
    check_rounds(rounds, steps)
    with (
        start_ranks(config.run.device, config.parallel.timeout_s) as ranks,
        guarded(ranks, config.parallel.timeout_s) as pulse,
        open_stand(config, ranks, pulse) as stand,
    ):
        measured = measure(stand, rounds, steps, on_turn)
        if trace is not None:
            stand.trace(trace)
        hosts = ranks.everyone(platform.node())
        stages = typical([stages_of(arms, decoded=stand.decodes) for arms in measured])
        if ranks.is_main:
            on_turn(1, 1, "what memory would hold")
        facts = gather_facts(stand, measured, stages, hosts) if ranks.is_main else None
        changes = ranks.on_main(lambda: suggest(facts) if facts is not None else ())
        tried = try_changes(stand, changes[:tries], facts, rounds, on_turn)
        return None if facts is None else conclude(stand, measured, facts, changes, tried, what)


def check_rounds(rounds: int, steps: int | None) -> None:
    """Refuse numbers that measure nothing.

    Raises:
        ConfigError: below 1.
    """
    if rounds < 1:
        raise ConfigError(f"--rounds {rounds}: at least 1, and 4 or more for a verdict")
    if steps is not None and steps < 1:
        raise ConfigError(f"--steps {steps}: at least 1")


def measure(stand: Stand, rounds: int, steps: int | None, on_turn: OnTurn) -> list[Round]:
    """The readings of all ranks, round by round; a collective."""
    arms: dict[str, Callable[[], Reading]] = {
        "whole": stand.whole, "synthetic": stand.synthetic, "loader": stand.fetch,
    }  # fmt: skip
    if stand.lonely is not None:
        arms["alone"] = stand.alone
    ranks = stand.ranks
    if stand.half is not None and ranks.on_main(lambda: bf16_gain(ranks.device)) > _WORTH_TRYING:
        arms["bf16"] = stand.bf16
    total = (rounds + 1) * len(arms)
    first: dict[str, Reading] = {}
    for number, (name, arm) in enumerate(arms.items()):  # one step each: the first are slow
        first[name] = arm()
        if ranks.is_main:
            on_turn(number + 1, total, "first steps")
    stand.steps = steps or max(ranks.everyone(_turn_steps(first["whole"].step_s)))
    read: dict[str, list[Sequence[Reading]]] = {name: [] for name in arms}
    last = ""

    def turn(name: str) -> Callable[[], float]:
        def act() -> float:
            nonlocal last
            readings = ranks.everyone(arms[name]())
            read[name].append(readings)
            last = name
            return max(reading.step_s for reading in readings)

        return act

    take_turns(
        {name: turn(name) for name in arms}, rounds, warm_up=0,
        on_turn=lambda done, _: on_turn(len(arms) + done, total, last) if ranks.is_main else None,
    )  # fmt: skip
    return [{name: read[name][at] for name in arms} for at in range(rounds)]


def _turn_steps(step_s: float) -> int:
    return min(_MOST, max(_FEWEST, round(TURN_S / max(step_s, 1e-6))))


def conclude(
    stand: Stand,
    rounds: Sequence[Round],
    facts: Facts,
    changes: Sequence[Change],
    tried: Sequence[Tried],
    what: str,
) -> Diagnosis:
    """From readings to a diagnosis, on rank 0."""
    samples = [stages_of(arms, decoded=stand.decodes) for arms in rounds]
    times = [seconds for arms in rounds for seconds in arms["whole"][0].steps]
    details = _details(stand, rounds, facts) | {"tried": [one.to_dict() for one in tried]}
    return Diagnosis.of(
        what or stand.config.data.path, StepTimes.of(times, stand.config.optim.batch_size), samples,
        changes=changes, notes=_notes(stand, facts), details=details,
    )  # fmt: skip


def _notes(stand: Stand, facts: Facts) -> list[str]:
    """What limits the figures, in sentences."""
    notes = []
    loading = facts.loading
    if loading is None:
        notes.append("images lie in memory: nothing is read or decoded, h2d is making a batch")
    elif facts.device == "cpu":
        notes.append(
            "on a CPU, h2d is the training process making floats of pictures, and decoding also "
            "takes cores from training"
        )
    if loading is not None and not loading.cost.clips:
        notes.append("no clip was decoded while steps were timed: storage is not told from decode")
    if facts.world > 1 and stand.lonely is None:
        notes.append(
            f"with {stand.config.parallel.strategy} ranks cannot compute alone: stragglers are not "
            "told from communication"
        )
    if facts.world > 1 and isinstance(stand.setup.task, ContrastiveTask):
        notes.append(
            "the contrastive loss gathers features from all ranks, also in the arm without "
            "averaging gradients: that part counts as compute, with any waiting in it"
        )
    if stand.config.speed.stages:
        notes.append("clips are those of the last stage (--speed.stages)")
    return notes


def _details(stand: Stand, rounds: Sequence[Round], facts: Facts) -> dict[str, Any]:
    """Figures beside the stages, for JSON and a table."""
    arms = {
        name: Spread.of([max(r.step_s for r in arms[name]) for arms in rounds]).to_dict()
        for name in rounds[0]
    }
    details: dict[str, Any] = {
        "device": facts.device, "precision": facts.precision, "world": facts.world,
        "steps_a_turn": stand.steps, "arms_s": arms, "idle_cores": facts.idle_cores,
        "bf16_saves_s": facts.bf16_s, "ranks_s": list(facts.ranks_s),
        "config": stand.config.to_dict(),
    }  # fmt: skip
    loading = facts.loading
    if loading is not None and loading.cost.clips:
        details["loading"] = loading.to_dict()
    return details
