"""Recipes: functions that return a full config. `matinee train NAME` looks them up here."""

from __future__ import annotations

from collections.abc import Callable

from matinee.recipes.cifar import efficientnet_cifar, resnet50_cifar, vit_cifar
from matinee.recipes.clip import clip_ego4d, clip_ego4d_large
from matinee.recipes.epic100 import cls_epic100, mir_epic100
from matinee.recipes.i3d import i3d_311_kinetics, i3d_333_kinetics
from matinee.recipes.tiny import tiny
from matinee.recipes.tsm import (
    SOMETHING_V2_SWAPS,
    tsm,
    tsm_kinetics,
    tsm_motion,
    tsm_something,
    tsn,
    tsn_kinetics,
)
from matinee.recipes.videomae import videomae_finetune_kinetics, videomae_kinetics
from matinee.training.config import TrainConfig

Recipe = Callable[[str, str], TrainConfig]

GROUPS: dict[str, tuple[Recipe, ...]] = {
    "classes of your own clips": (tsm, tsn, tsm_motion),
    "classes of public data sets": (
        tsm_kinetics, tsn_kinetics, tsm_something, i3d_333_kinetics, i3d_311_kinetics, cls_epic100,
        videomae_finetune_kinetics,
    ),
    "clips and captions": (clip_ego4d, clip_ego4d_large, mir_epic100),
    "clips without labels": (videomae_kinetics,),
    "images": (resnet50_cifar, vit_cifar, efficientnet_cifar),
}  # fmt: skip
"""Recipes by what they learn from."""

RECIPES: dict[str, Recipe] = {r.__name__: r for recipes in GROUPS.values() for r in recipes}

__all__ = [
    "GROUPS",
    "RECIPES",
    "SOMETHING_V2_SWAPS",
    "Recipe",
    "clip_ego4d",
    "clip_ego4d_large",
    "cls_epic100",
    "efficientnet_cifar",
    "i3d_311_kinetics",
    "i3d_333_kinetics",
    "mir_epic100",
    "resnet50_cifar",
    "tiny",
    "tsm",
    "tsm_kinetics",
    "tsm_motion",
    "tsm_something",
    "tsn",
    "tsn_kinetics",
    "videomae_finetune_kinetics",
    "videomae_kinetics",
    "vit_cifar",
]
