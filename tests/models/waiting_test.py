"""No task reads a tensor of the device while it trains: on `meta`, where nothing can be read."""

from contextlib import nullcontext
from dataclasses import fields, replace

import pytest
import torch

from matinee.data.batch import Batch
from matinee.models.config import Frames, Inflate, Joint, ModelConfig, Shift
from matinee.models.recompute import recompute_blocks
from matinee.tasks.build import build_task
from matinee.tasks.config import (
    ClassificationConfig,
    ClipTextConfig,
    ContrastiveConfig,
    MaskedConfig,
)
from matinee.tasks.vocabulary import Vocabulary

FRAMES, SIZE, CLIPS = 8, 32, 4
VIT = ModelConfig("test_vit", Joint(patch_dropout=0.5), patch_size=8, drop_path=0.2)
MAE = replace(VIT, temporal=Joint(tubelet=2, positions="sine"))
MASKED = MaskedConfig(mask_ratio=0.75, decoder_depth=1, decoder_width=16, decoder_heads=2)
PAIRS = ContrastiveConfig(text=ClipTextConfig(width=8, heads=2, layers=1), embed_dim=8)
CASES = {
    "frames": (ClassificationConfig(), ModelConfig("test_efficientnet", Frames(), drop_path=0.2)),
    "mixed": (
        ClassificationConfig(mixup=0.8, cutmix=1.0, label_smoothing=0.1),
        ModelConfig("test_resnet", Shift(pool=True, non_local=True)),
    ),
    "several labels": (
        ClassificationConfig(labels="multi"), ModelConfig("test_resnet", Inflate()),
    ),
    "joint": (ClassificationConfig(), VIT),
    "contrastive": (PAIRS, VIT),
    "max-margin": (replace(PAIRS, loss="max-margin"), ModelConfig("test_resnet", Shift())),
    "masked": (MASKED, MAE),
    "dual masking": (replace(MASKED, decode_ratio=0.5, normalise_targets=False), MAE),
}  # fmt: skip


def make_task(kind):
    config, model = CASES[kind]
    built = build_task(
        config, model, frames=FRAMES, size=SIZE, vocabulary=Vocabulary(("a", "b", "c"))
    )
    recompute_blocks(built.task.model, 2)
    return built.task.train().to("meta")


def make_batch(multi=False):
    on_device = {
        "video": torch.randn(CLIPS, 3, FRAMES, SIZE, SIZE),
        "target": torch.rand(CLIPS, 3) if multi else torch.arange(CLIPS) % 3,
        "valid": torch.tensor([True, True, False, True]),
    }
    batch = Batch(
        **{name: tensor.to("meta") for name, tensor in on_device.items()},
        index=torch.arange(CLIPS),
        samples=tuple("abcd"),
        num_valid=3,
        texts=("a red square",) * CLIPS,
        seeds=torch.arange(CLIPS),
    )
    assert {f.name for f in fields(Batch)} == set(vars(batch))
    return batch


@pytest.mark.parametrize("kind", CASES)
def test_forward_and_backward_pass_read_nothing(kind, monkeypatch):
    """`item`, `nonzero`, a boolean index and `if tensor` are errors on `meta`."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # unknown to `meta`
    task = make_task(kind)
    outcome = task(make_batch(multi=kind == "several labels"))
    outcome.loss.backward()
    assert outcome.loss.device.type == "meta"
    missing = [n for n, p in task.named_parameters() if p.requires_grad and p.grad is None]
    assert all(name.startswith("model.logit_scale") for name in missing)


def test_masks_of_unknown_counts_are_read_and_that_would_be_seen_here():
    task, batch = make_task("masked"), make_batch()
    hidden, decoded = task.masks(batch.seeds, batch.video.device)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        task.model(batch.video, hidden, decoded)


@pytest.mark.parametrize("ratio", [1.0, 0.25, 0.5, 0.75])
@pytest.mark.parametrize("patch", [8, 16, 32])
def test_the_counts_that_a_task_tells_are_those_of_its_masks(ratio, patch):
    """Also where cells of 2×2 are incomplete (a single patch in each of four tubelets)."""
    frames = 8 if ratio < 1 else 4
    task = build_task(
        replace(MASKED, decode_ratio=ratio, mask_ratio=0.75 if patch < 32 else 0.5),
        replace(MAE, patch_size=patch), frames=frames, size=SIZE if patch < 32 else 96,
        vocabulary=Vocabulary(()),
    ).task  # fmt: skip
    hidden, decoded = task.masks(torch.arange(7), torch.device("cpu"))
    shown = hidden if decoded is None else decoded
    visible, wanted = task.counts()
    assert (~hidden).sum(dim=1).tolist() == [visible] * 7
    assert shown.sum(dim=1).tolist() == [wanted] * 7
