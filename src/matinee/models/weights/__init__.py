"""Published weights: read from files, translated to names here, loaded with a report."""

from __future__ import annotations

from matinee.models.weights.apply import load_into, traits_of
from matinee.models.weights.files import read_state_dict
from matinee.models.weights.layouts import Traits
from matinee.models.weights.report import ImportReport

__all__ = [
    "ImportReport",
    "Traits",
    "load_into",
    "read_state_dict",
    "traits_of",
]
