"""Masked pretraining: masks by seed, and the loss by numpy from what was predicted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from matinee.data.batch import Batch
from matinee.errors import ConfigError
from matinee.models.config import Joint, ModelConfig
from matinee.tasks.build import build_task
from matinee.tasks.config import MaskedConfig
from matinee.tasks.vocabulary import Vocabulary

FRAMES, SIZE, PATCH, TUBELET = 8, 32, 8, 2
STEPS, PATCHES = FRAMES // TUBELET, (SIZE // PATCH) ** 2
MODEL = ModelConfig(
    "test_vit", Joint(tubelet=TUBELET, positions="sine"), patch_size=PATCH, dropout=0.0
)
CONFIG = MaskedConfig(mask_ratio=0.75, decoder_depth=1, decoder_width=32, decoder_heads=2)
SEEDS = torch.tensor([11, 5, 2**62 + 3, 11, 8])
VALID = torch.tensor([True, True, False, True, True])


def make_task(config=CONFIG):
    torch.manual_seed(0)
    built = build_task(config, MODEL, frames=FRAMES, size=SIZE, vocabulary=Vocabulary(()))
    return built.task.eval(), built.normalisation


@pytest.fixture(scope="module")
def task():
    return make_task()[0]


def make_batch(rows=slice(None), valid=VALID) -> Batch:
    video = torch.randn(5, 3, FRAMES, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    number = torch.arange(5)
    return Batch(
        video=video[rows],
        target=torch.full((5,), -1)[rows],
        valid=valid[rows],
        index=number[rows],
        samples=tuple(f"clip {i}" for i in number[rows].tolist()),
        num_valid=int(valid[rows].sum()),
        texts=("",) * len(number[rows]),
        seeds=SEEDS[rows],
    )


def test_a_clips_mask_does_not_depend_on_its_neighbours(task):
    whole, _ = task.masks(SEEDS, torch.device("cpu"))
    for order in ([0], [4, 2], [3, 1, 0, 4, 2]):
        some, _ = task.masks(SEEDS[order], torch.device("cpu"))
        assert torch.equal(some, whole[order])
    assert torch.equal(whole[0], whole[3])  # equal seeds
    assert len({tuple(row.tolist()) for row in whole}) == 4


@pytest.mark.parametrize("ratio", [0.5, 0.75, 0.9])
def test_the_ratio_counts_tubes(ratio):
    """⌊ratio · patches⌋ of them, the same in all steps."""
    task, _ = make_task(replace(CONFIG, mask_ratio=ratio))
    hidden, decoded = task.masks(SEEDS, torch.device("cpu"))
    tubes = hidden.view(5, STEPS, PATCHES)
    assert decoded is None
    assert torch.equal(tubes, tubes[:, :1].expand_as(tubes))
    assert (tubes[:, 0].sum(1) == int(ratio * PATCHES)).all()


@pytest.mark.parametrize("decode_ratio", [1.0, 0.5])
def test_the_loss_is_the_sum_over_valid_clips_each_as_if_alone(decode_ratio):
    task, _ = make_task(replace(CONFIG, decode_ratio=decode_ratio))
    with torch.no_grad():
        whole = task(make_batch()).loss.item()
        alone = [
            task(make_batch(slice(i, i + 1), torch.ones(5, dtype=torch.bool))).loss.item()
            for i in range(5)
        ]
    assert whole == pytest.approx(sum(alone[i] for i in (0, 1, 3, 4)), rel=1e-5)
    assert min(alone) > 0 and len(set(alone)) == 5


@pytest.mark.parametrize("decode_ratio", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("normalise", [True, False])
def test_the_loss_counts_hidden_and_decoded_patches_alone(decode_ratio, normalise):
    """From the network's prediction, patch by patch in numpy and float64."""
    config = replace(CONFIG, decode_ratio=decode_ratio, normalise_targets=normalise)
    task, normalisation = make_task(config)
    batch = make_batch()
    hidden, decoded = task.masks(SEEDS, torch.device("cpu"))
    with torch.no_grad():
        _, prediction = task.model(batch.video, hidden, decoded)
        outcome = task(batch)
    shown = hidden if decoded is None else decoded
    assert prediction.shape[1] == int(shown[0].sum())
    if decoded is not None:
        assert float(decoded.float().mean()) == decode_ratio
    mean, std = (np.array(v)[:, None, None, None] for v in (normalisation.mean, normalisation.std))
    total = 0.0
    for i in VALID.nonzero()[:, 0].tolist():
        unit = batch.video[i].double().numpy() * std + mean
        errors = []
        for place, token in enumerate(shown[i].nonzero()[:, 0].tolist()):
            if not hidden[i, token]:
                continue
            step, patch = divmod(token, PATCHES)
            row, column = divmod(patch, SIZE // PATCH)
            pixels = unit[
                :, step * TUBELET : (step + 1) * TUBELET, row * PATCH : (row + 1) * PATCH,
                column * PATCH : (column + 1) * PATCH,
            ].reshape(3, -1)  # fmt: skip
            if normalise:
                middle, spread = pixels.mean(1, keepdims=True), pixels.std(1, ddof=1, keepdims=True)
                pixels = (pixels - middle) / (spread + 1e-6)
            guess = prediction[i, place].double().numpy().reshape(-1, 3).T
            errors.append(((guess - pixels) ** 2).mean())
        total += float(np.mean(errors))
    assert outcome.loss.item() == pytest.approx(total, rel=1e-4)


def test_masks_of_training_and_evaluation_come_from_the_seeds_alone(task):
    losses = []
    for mode, state in ((True, 0), (False, 1)):
        torch.manual_seed(state)
        task.train(mode)
        with torch.no_grad():
            losses.append(task(make_batch()).loss)
    task.eval()
    assert torch.equal(*losses)


def test_what_an_invalid_clip_shows_changes_no_gradient(task):
    found = []
    for noise in (0, 1):
        batch = make_batch()
        batch.video[2] += noise * torch.randn(3, FRAMES, SIZE, SIZE)
        task.zero_grad()
        task(batch).loss.backward()
        found.append([p.grad.clone() for p in task.parameters()])
    task.zero_grad()
    for before, after in zip(*found, strict=True):
        torch.testing.assert_close(before, after, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("ratio", [0.0, 1.0, 1.2, float("nan")])
def test_a_ratio_outside_its_bounds_is_refused(ratio):
    with pytest.raises(ConfigError, match=r"--task\.mask-ratio"):
        MaskedConfig(mask_ratio=ratio)


def test_a_ratio_that_hides_nothing_of_these_clips_is_refused_when_built():
    with pytest.raises(ConfigError, match=r"mask ratio of 0.05 hides 0 of the 16 patches"):
        make_task(replace(CONFIG, mask_ratio=0.05))


def test_a_decode_ratio_that_no_cell_of_four_allows_is_refused_when_built():
    with pytest.raises(ConfigError, match=r"decode ratio of 0.4: .* 0.25, 0.5, 0.75"):
        make_task(replace(CONFIG, decode_ratio=0.4))


def test_a_decoder_without_heads_is_refused():
    with pytest.raises(ConfigError, match=r"--task\.decoder-heads 0"):
        MaskedConfig(decoder_heads=0)
