"""Recipes: functions that return a full config. `matinee train NAME` looks them up here."""

from matinee.recipes.tsm import tsm as tsm
from matinee.recipes.tsm import tsm_motion as tsm_motion
from matinee.recipes.tsm import tsn as tsn

RECIPES = {"tsm": tsm, "tsn": tsn, "tsm-motion": tsm_motion}
