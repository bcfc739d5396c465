"""Whose names a file of weights has, and what they mean here: one module a project."""

from __future__ import annotations

from matinee.models.weights.layouts.avion import AVION
from matinee.models.weights.layouts.base import Layout, Traits, is_head, part
from matinee.models.weights.layouts.clip import CLIP
from matinee.models.weights.layouts.lavila import LAVILA
from matinee.models.weights.layouts.own import OWN
from matinee.models.weights.layouts.timm import TIMM
from matinee.models.weights.layouts.tsm import TSM
from matinee.models.weights.layouts.videomae import VIDEOMAE

LAYOUTS = (TSM, AVION, LAVILA, CLIP, VIDEOMAE, OWN, TIMM)
"""In the order in which they are tried: the special before the general."""

__all__ = ["LAYOUTS", "TIMM", "Layout", "Traits", "is_head", "part"]
