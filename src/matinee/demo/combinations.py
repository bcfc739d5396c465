"""Captioned shapes whose test captions say something training never said.

A caption is a combination of colour, shape and motion; there are 6 · 4 · 8 = 192. Some are held
out: each of their words occurs in training, never together. A model that learnt captions by heart
finds nothing; one that learnt what the words mean finds the clip.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np

from matinee.demo.shapes import CLASSES, COLOURS, SHAPES, Segment, plan_segment, write_videos

Combination = tuple[str, str, str]
_PER_VIDEO = 32


def split_combinations(
    held_out: int, *, seed: int = 0
) -> tuple[list[Combination], list[Combination]]:
    """(colour, shape, motion) of training and of test: all but `held_out` at random, and those.

    Raises:
        ValueError: nothing left on one side, or a word that training would never say.
    """
    combinations = list(product(COLOURS, SHAPES, CLASSES))
    if not 0 < held_out < len(combinations):
        raise ValueError(f"held_out={held_out}: between 1 and {len(combinations) - 1}")
    order = np.random.default_rng(seed).permutation(len(combinations))
    test = [combinations[i] for i in order[:held_out]]
    train = [combinations[i] for i in order[held_out:]]
    for words in zip(*combinations, strict=True):
        unsaid = set(words) - {word for combination in train for word in combination}
        if unsaid:
            raise ValueError(f"held_out={held_out} leaves {min(unsaid)!r} out of training")
    return train, test


def write_combinations(
    folder: Path,
    *,
    copies: int,
    held_out: int = 64,
    seed: int = 0,
    size: tuple[int, int] = (96, 96),
    fps: int = 12,
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write videos and `labels.csv` as `write_shapes` does: `copies` clips of each training
    combination, each different in all else, and one of each held-out combination.

    Returns:
        The path of labels.csv.

    Raises:
        ValueError: no copies, or what `split_combinations` and `write_videos` refuse.
    """
    if copies < 1:
        raise ValueError(f"copies={copies}: at least 1")
    train, test = split_combinations(held_out, seed=seed)
    videos: list[tuple[str, str, list[Segment]]] = []
    for split, items in (("train", train * copies), ("test", test)):
        order = np.random.default_rng((seed, int(split == "test"))).permutation(len(items))
        segments = [_plan(items[i], (seed, int(split == "test"), int(i)), fps) for i in order]
        for start in range(0, len(segments), _PER_VIDEO):
            name = f"{split}_{start // _PER_VIDEO:03d}"
            videos.append((split, name, segments[start : start + _PER_VIDEO]))
    return write_videos(folder, videos, len(videos), size=size, fps=fps, on_progress=on_progress)


def _plan(combination: Combination, key: tuple[int, ...], fps: int) -> Segment:
    colour, shape, motion = combination
    rng = np.random.default_rng(key)
    return plan_segment(motion, rng, fps=fps, shape=shape, colour=colour)
