"""What `matinee tune` searches when nobody says: for each task, with reasons.

Learning rate, optimizer, weight decay and clipping are what arXiv 2312.10024 searched; rates and
decays mean something else to each optimizer, so each has its own range.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matinee.models.config import Joint
from matinee.tasks.config import ClassificationConfig, ContrastiveConfig
from matinee.training.config import OptimConfig, TrainConfig
from matinee.training.search.dimensions import Condition, Dimension

# Rates at which optimizers take steps of about one size, in multiples of Adam's: recipes of the
# same networks give SGD 0.1 where Adam has 1e-3; Lion takes 3 to 10 times less than AdamW, and as
# much more weight decay (arXiv 2302.06675, §5).
_RATE = {"sgd": 100.0, "adam": 1.0, "adamw": 1.0, "lion": 0.2}
_DECAY = {
    "sgd": (1e-5, 1e-3), "adam": (1e-6, 1e-3), "adamw": (1e-3, 0.3), "lion": (1e-2, 3.0),
}  # fmt: skip


def default_space(config: TrainConfig) -> list[Dimension]:
    """Dimensions around a config's own values, so that the config itself is one of the trials."""
    optim, task = config.optim, config.task
    names = _optimizers(config)
    space = [_choose("optim.name", names, why=_why_optimizers(names))] if len(names) > 1 else []
    for name in names:
        when = Condition("optim.name", (name,)) if len(names) > 1 else None
        space += [_rate(optim, name, when), _decay(optim, name, when)]
    if "sgd" in names:
        momenta = (0.8, 0.9, 0.95, 0.98, optim.momentum)
        space.append(_choose("optim.momentum", momenta, why="trades against the learning rate"))
    clipped = Condition("optim.clip_norm", (None,))
    space += [
        _choose(
            "optim.clip_norm", (None, 1.0, 5.0, 20.0, optim.clip_norm),
            why="bounds the rare large step, so that higher rates survive",
        ),
        _choose(
            "optim.clip_value", (None, 0.01, 0.1, optim.clip_value), when=clipped,
            why="the other way of clipping, where the norm is not",
        ),
    ]  # fmt: skip
    if optim.layer_decay < 1:
        decays = (0.65, 0.75, 0.85, optim.layer_decay)
        space.append(_choose("optim.layer_decay", decays, why="how much of pretraining stays"))
    if isinstance(task, ContrastiveConfig):
        return space + _contrastive(task)
    halves = [size for size in (optim.batch_size // 2, optim.batch_size) if _fits(size, optim)]
    if len(halves) > 1:
        why = "a smaller batch takes more steps an epoch, and fits wherever the larger does"
        space.append(_choose("optim.batch_size", halves, why=why))
    if isinstance(task, ClassificationConfig):
        if task.labels != "multi":
            smooth = (0.0, 0.1, 0.2, task.label_smoothing)
            why = "against overconfidence (arXiv 1512.00567, §7)"
            space.append(_choose("task.label_smoothing", smooth, why=why))
        return space
    why = "a short memory of squares is steadier in reconstruction (arXiv 2111.06377, appendix A)"
    betas = ((0.9, 0.95), (0.9, 0.999), optim.betas)
    return [*space, _choose("optim.betas", betas, why=why)]


def _optimizers(config: TrainConfig) -> list[str]:
    """The recipe's own, and those it is usually compared with."""
    own, vit = config.optim.name, isinstance(config.model.temporal, Joint)
    vit = vit or config.model.backbone.startswith("vit_")
    if own not in _RATE:
        return [own]
    usual = ("adamw", "lion") if vit else ("sgd", "adamw")
    return list(dict.fromkeys([*usual, own]))


def _why_optimizers(names: Iterable[str]) -> str:
    if "lion" in names:
        return "ViTs learn poorly with SGD (arXiv 2106.14881); Lion holds half of AdamW's state"
    return "CNNs learn well with either; which is better depends on the data and the epochs"


def _rate(optim: OptimConfig, name: str, when: Condition | None) -> Dimension:
    own = name == optim.name
    middle = optim.lr * (_RATE[name] / _RATE[optim.name] if name in _RATE else 1)
    reach = 10 if own else 30
    why = "a decade around the recipe's" if own else "1.5 decades around that of equal steps"
    low, high = _round(middle / reach), _round(middle * reach)
    return Dimension("optim.lr", (), low, high, log=True, when=when, why=why)


def _decay(optim: OptimConfig, name: str, when: Condition | None) -> Dimension:
    low, high = _DECAY.get(name, (1e-4, 0.1))
    own = optim.weight_decay if name == optim.name else low
    if own == 0:
        choices = (0.0, low, (low * high) ** 0.5, high)
        return _choose("optim.weight_decay", map(_round, choices), when=when, why="none, or some")
    why = "apart from the gradient" if name in ("adamw", "lion") else "through the gradient"
    low, high = min(low, own), max(high, own)
    return Dimension("optim.weight_decay", (), low, high, log=True, when=when, why=why)


def _contrastive(task: ContrastiveConfig) -> list[Dimension]:
    """Not the batch size: it is the number of wrong captions, and the more the better."""
    if task.loss == "max-margin":
        margins = (0.1, 0.2, 0.4, task.margin)
        return [_choose("task.margin", margins, why="how far wrong pairs must be")]
    why = "how much the hardest wrong captions count" + (
        "; where learning begins" if task.learn_temperature else ""
    )
    return [_choose("task.temperature", (0.03, 0.05, 0.07, 0.1, task.temperature), why=why)]


def _fits(size: int, optim: OptimConfig) -> bool:
    return size >= 2 and size % optim.accumulate == 0


def _choose(
    field: str, values: Iterable[Any], *, why: str, when: Condition | None = None
) -> Dimension:
    """A dimension of different values, in order, "none" first."""
    known = sorted(set(values), key=lambda v: (v is not None, v if v is not None else 0))
    return Dimension(field, tuple(known), when=when, why=why)


def _round(value: float) -> float:
    return float(f"{value:.3g}")
