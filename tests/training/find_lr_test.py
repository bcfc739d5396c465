"""The learning-rate range test on real networks, against a plain loop."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from relabel import relabelled
from small_search import config
from torch.nn.functional import cross_entropy

from matinee.data.clips import ClipSpec
from matinee.data.loader import ClipLoader
from matinee.errors import ConfigError
from matinee.models.config import Joint, ModelConfig
from matinee.pack.reading.reader import Pack
from matinee.tasks.config import ClipTextConfig, ContrastiveConfig, MaskedConfig
from matinee.training.parallel.ranks import Ranks
from matinee.training.search import find_lr as find_lr_module
from matinee.training.search.find_lr import find_lr
from matinee.training.setup import prepare
from matinee.training.step import StepRunner

MAE = ModelConfig(
    "vit_tiny_patch16_224", Joint(tubelet=2, positions="sine"), patch_size=8, dropout=0.0
)


def sgd(pack, **optim):
    """Without momentum, decay and clipping."""
    plain = {"momentum": 0.0, "weight_decay": 0.0, "clip_norm": None}
    return config(pack, "nowhere/run", **{**plain, **optim})


def test_losses_are_those_of_a_plain_loop(clips_pack):
    """The same network and batches; weight - rate × gradient, at rates that rise by one factor."""
    vit = ModelConfig("test_vit", Joint(), patch_size=8, dropout=0.0)  # calm: rounding stays small
    settings = replace(sgd(clips_pack), model=vit)
    found = find_lr(settings, low=1e-4, high=1e-2, steps=20)
    pack = Pack(clips_pack)
    setup = prepare(pack, settings, Ranks(0, 1, 1, torch.device("cpu")))
    network = setup.task.model.train()
    mean, std = setup.normalisation.mean, setup.normalisation.std
    losses = []
    with ClipLoader(
        pack, split="train", clip=ClipSpec(frames=2, size=32), batch_size=4, seed=3, workers=1,
        mode="threads", mean=mean, std=std, classes=pack.classes,
    ) as loader:  # fmt: skip
        batches = [batch for _ in range(7) for batch in loader]  # three of four clips an epoch
        for number, batch in enumerate(batches[:20]):
            loss = cross_entropy(network(batch.video).float(), batch.target)
            losses.append(loss.item())
            network.zero_grad()
            loss.backward()
            with torch.no_grad():
                for weight in network.parameters():
                    weight.sub_(1e-4 * 100 ** (number / 19) * weight.grad)
    assert np.allclose(found.losses, losses, rtol=1e-4)
    assert np.allclose(found.rates, np.geomspace(1e-4, 1e-2, 20))


def test_rates_are_those_of_optim_lr_which_grow_with_the_batch(clips_pack):
    """A batch of 4 for rates of a batch of 2: steps twice as large."""
    plain = find_lr(sgd(clips_pack), low=2e-4, high=2e-1, steps=20)
    based = find_lr(sgd(clips_pack, base_batch=2), low=1e-4, high=1e-1, steps=20)
    assert based.growth == 2 and plain.growth == 1
    assert np.allclose(based.losses, plain.losses, rtol=1e-5)
    assert np.allclose(np.array(plain.rates), 2 * np.array(based.rates))


def test_a_batch_in_parts_gives_the_same_losses(clips_pack, monkeypatch):
    """Its own, and those of ranks that are simulated; of a network without batch normalisation."""
    sizes = []

    class Watched(StepRunner):
        def __call__(self, batches, **more):
            batches = list(itertools.islice(batches, self.parts))
            sizes.append(tuple(len(batch) for batch in batches))
            return super().__call__(iter(batches), **more)

    monkeypatch.setattr(find_lr_module, "StepRunner", Watched)
    vit = ModelConfig("test_vit", Joint(), patch_size=8, dropout=0.0)
    whole = replace(sgd(clips_pack), model=vit)
    found = find_lr(whole, low=1e-4, high=1e-2, steps=20)
    for change, parts in (
        ({"optim": replace(whole.optim, accumulate=2)}, (2, 2)),
        ({"parallel": replace(whole.parallel, simulate_world=4)}, (1, 1, 1, 1)),
    ):
        other = find_lr(replace(whole, **change), low=1e-4, high=1e-2, steps=20)
        assert np.allclose(found.losses, other.losses, rtol=1e-4)
        assert sizes[0] == (4,) and sizes[-1] == parts


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lion", "lamb", "lars", "muon"])
def test_any_optimizer_is_tested(clips_pack, name):
    """Rates reach it: at the first it moves nothing to speak of, at the last it does."""
    settings = sgd(clips_pack, name=name)
    found = find_lr(settings, low=1e-9, high=1e-1, steps=20)
    still = find_lr(settings, low=1e-9, high=2e-9, steps=20)
    assert found.optimizer == name
    assert np.allclose(found.losses[:5], still.losses[:5], rtol=1e-3)
    last = slice(12, len(found.losses))
    assert not np.allclose(found.losses[last], still.losses[last], rtol=1e-2)


def test_every_task_is_tested(clips_pack, tmp_path):
    pack = relabelled(clips_pack, tmp_path / "c.pack", text=[f"clip {i}" for i in range(18)])
    pair = ContrastiveConfig(ClipTextConfig(width=8, heads=2, layers=1), embed_dim=8)
    masked = MaskedConfig(decoder_depth=1, decoder_width=64, decoder_heads=2)
    for change in ({"task": pair}, {"task": masked, "model": MAE}):
        settings = replace(sgd(pack, name="adamw"), **change)
        found = find_lr(settings, low=1e-6, high=1e-3, steps=20)
        assert len(found.losses) == 20 and all(map(math.isfinite, found.losses))


def test_it_ends_where_the_loss_diverges_and_writes_nothing(clips_pack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = []
    found = find_lr(
        sgd(clips_pack), low=1e-3, high=1e9, steps=40, on_step=lambda *step: told.append(step)
    )
    assert found.diverged and len(found.losses) < 40
    assert told == [(i + 1, 40, rate) for i, rate in enumerate(found.rates)]
    assert not list(Path().iterdir())
    plain = found.to_dict()
    last = found.losses[-1]
    assert plain["losses"][-1] == (last if math.isfinite(last) else None)
    assert len(found.smoothed) == sum(map(math.isfinite, found.losses))


def test_settings_that_cannot_be_are_refused(clips_pack, monkeypatch):
    with pytest.raises(ConfigError, match="fewer than one batch of 16"):
        find_lr(sgd(clips_pack, batch_size=16))
    with pytest.raises(ConfigError, match="--from 1 --to"):
        find_lr(sgd(clips_pack), low=1, high=0.1)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"),
                        ("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"),
                        ("MASTER_PORT", "1")):  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="without torchrun or srun"):
        find_lr(sgd(clips_pack))
