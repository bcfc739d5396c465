"""All changes that are known to help, best first."""

from __future__ import annotations

from matinee.measure.diagnose.changes import Change, ranked
from matinee.measure.diagnose.facts import Facts
from matinee.measure.diagnose.suggest_data import suggest_data
from matinee.measure.diagnose.suggest_step import suggest_step


def suggest(facts: Facts) -> tuple[Change, ...]:
    """Of data and step together, by what each saves alone."""
    return ranked([*suggest_data(facts), *suggest_step(facts)], facts.step_s)
