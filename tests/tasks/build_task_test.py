"""From configs to tasks: the sizes asked for, and weights that travel from one task to the next."""

from dataclasses import replace

import pytest
import timm
import torch

from matinee.errors import ConfigError
from matinee.models.config import Joint, ModelConfig, Shift
from matinee.tasks.build import build_task
from matinee.tasks.classification import ClassificationTask
from matinee.tasks.config import (
    ClassificationConfig,
    ClipTextConfig,
    ContrastiveConfig,
    MaskedConfig,
    SentenceTextConfig,
)
from matinee.tasks.contrastive import ContrastiveTask
from matinee.tasks.masked import MaskedTask
from matinee.tasks.vocabulary import Vocabulary

CNN = ModelConfig("test_resnet", Shift(), dropout=0.5)
VIT = ModelConfig("test_vit", Joint(), patch_size=8, dropout=0.5)
MAE = replace(VIT, temporal=Joint(tubelet=2, positions="sine"))
TEXT = ClipTextConfig(width=8, heads=2, layers=1)
PAIR = ContrastiveConfig(text=TEXT, embed_dim=6)
MASKED = MaskedConfig(mask_ratio=0.75, decoder_depth=1, decoder_width=32, decoder_heads=2)
VIDEO = torch.randn(2, 3, 4, 32, 32, generator=torch.Generator().manual_seed(0))
THREE = Vocabulary(("a", "b", "c"))


def build(task, model, vocabulary=THREE, *, seed=0):
    torch.manual_seed(seed)
    return build_task(task, model, frames=4, size=32, vocabulary=vocabulary)


def save_as_run(task, path):
    """As the loop saves a checkpoint."""
    torch.save({"state": {"model": task.model.state_dict()}, "vocabulary": {}}, path)


def test_a_classification_task_has_an_output_a_class():
    built = build(ClassificationConfig(labels="multi"), CNN)
    assert isinstance(built.task, ClassificationTask) and built.task.config.labels == "multi"
    assert built.task.model(VIDEO).shape == (2, 3)
    published = timm.create_model("test_resnet").pretrained_cfg
    assert built.normalisation.mean == published["mean"]
    (note,) = built.notes
    assert "temporal shift" in note and "from scratch" in note


@pytest.mark.parametrize("model", [CNN, VIT])
def test_a_contrastive_task_joins_both_towers(model):
    """Without the classifier's dropout, which would also blur the features."""
    sets = Vocabulary((), verbs=("cut", "put"), nouns=("egg",))
    config = replace(PAIR, learn_temperature=False, temperature=0.05)
    built = build(config, model, sets)
    task = built.task
    assert isinstance(task, ContrastiveTask) and task.verbs == 2
    task.train()
    for module in task.modules():  # batch normalisation aside
        module.training = not isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
    video = task.model.embed_video(VIDEO)
    assert video.shape == (2, 6) and torch.equal(video, task.model.embed_video(VIDEO))
    tokens = task.model.text.tokenize(["a red circle", "x"])
    assert task.model.embed_text(tokens.ids).shape == (2, 6)
    assert "logit_scale" not in dict(task.model.named_parameters())
    assert float(task.model.scale()) == pytest.approx(20)
    assert "1 layers of 8" in built.notes[1]


def test_the_text_tower_is_the_one_asked_for():
    for quick in (False, True):
        config = replace(PAIR, text=replace(TEXT, layers=3, quick_gelu=quick))
        blocks = build(config, CNN).task.model.text.transformer.resblocks
        kinds = {type(m).__name__ for m in blocks.modules()}
        assert len(blocks) == 3 and ("QuickGELU" in kinds) == quick


def test_a_masked_task_has_the_decoder_asked_for():
    built = build(replace(MASKED, decoder_depth=3, normalise_targets=False), MAE)
    task = built.task
    assert isinstance(task, MaskedTask) and task.model.tubelet == 2 and task.model.frames == 4
    assert len(task.model.decoder.blocks) == 3 and not task.model.normalise_targets
    assert task.model.encoder_to_decoder.out_features == 32
    assert (
        "12 of a frame's 16 patches hidden" in built.notes[0]
        and built.notes[1] == "weights from scratch"
    )


@pytest.mark.parametrize(
    ("task", "model"), [(ClassificationConfig(), CNN), (PAIR, VIT), (MASKED, MAE)]
)
def test_weights_follow_from_torchs_seed(task, model):
    one, same, other = (build(task, model, seed=seed).task.state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(value, same[key]) for key, value in one.items())
    assert any(not torch.equal(value, other[key]) for key, value in one.items())


def test_a_masked_runs_encoder_is_fine_tuned(tmp_path):
    """All of its blocks; the norm after pooling and the classifier are new."""
    before = build(MASKED, MAE).task
    save_as_run(before, tmp_path / "last.pt")
    config = replace(MAE, pretrained=str(tmp_path / "last.pt"))
    built = build(ClassificationConfig(), config, seed=1)
    after = built.task.model.state_dict()
    kept = {
        key: value for key, value in before.model.state_dict().items() if key.startswith("encoder.")
    }
    blocks = [key for key in kept if ".blocks." in key or ".patch_embed." in key]
    assert len(blocks) > 20
    for key in blocks:
        assert torch.equal(after[key.replace("encoder.", "backbone.", 1)], kept[key]), key
    assert "last.pt" in built.notes[0] and "a new classifier" in built.notes[0]


def test_a_contrastive_runs_video_tower_is_fine_tuned(tmp_path):
    before = build(PAIR, VIT).task
    save_as_run(before, tmp_path / "last.pt")
    config = replace(VIT, pretrained=str(tmp_path / "last.pt"))
    after = build(ClassificationConfig(), config, seed=1).task.model
    with torch.no_grad():
        wanted = before.model.video.eval().embed(VIDEO)
        torch.testing.assert_close(after.eval().embed(VIDEO), wanted)


def test_a_contrastive_run_goes_on_with_both_towers(tmp_path):
    """With a graded loss, say; frames and temperature may differ."""
    before = build(PAIR, VIT).task
    save_as_run(before, tmp_path / "last.pt")
    config = replace(VIT, pretrained=str(tmp_path / "last.pt"))
    built = build(replace(PAIR, loss="max-margin"), config, seed=1)
    after = built.task.model.state_dict()
    for key, value in before.model.state_dict().items():
        assert torch.equal(after[key], value), key
    assert any("last.pt" in note for note in built.notes)


@pytest.mark.parametrize(
    ("task", "model", "words"),
    [
        (MASKED, CNN, "masked pretraining needs a ViT with joint attention"),
        (MASKED, replace(MAE, temporal=Joint(tubelet=2), pretrained="timm"), "give a file"),
        (MASKED, replace(MAE, pretrained="gone.pt"), "gone.pt: no such file"),
        (PAIR, replace(CNN, pretrained="gone.pt"), "gone.pt: no such file"),
        (replace(PAIR, text=SentenceTextConfig("gone")), CNN, "gone is no folder of a sentence"),
        (ClassificationConfig(), replace(CNN, temporal=Joint()), "joint attention needs a ViT"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(task, model, words):
    with pytest.raises(ConfigError, match=words) as refused:
        build(task, model)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ClassificationConfig(label_smoothing=1.0), r"--task\.label-smoothing 1\.0"),
        (lambda: ClassificationConfig(mixup=-1), r"--task\.mixup -1"),
        (lambda: ClassificationConfig(cutmix=float("inf")), r"--task\.cutmix inf"),
        (lambda: ContrastiveConfig(temperature=0.009), r"--task\.temperature 0\.009"),
        (lambda: ContrastiveConfig(temperature=float("nan")), r"--task\.temperature nan"),
        (lambda: ContrastiveConfig(margin=0.0), r"--task\.margin 0\.0"),
        (lambda: ContrastiveConfig(embed_dim=0), r"--task\.embed-dim 0"),
        (lambda: ContrastiveConfig(graded=True), r"--task\.graded has no effect"),
        (lambda: ClipTextConfig(heads=0), r"with 0 heads"),
        (lambda: ClipTextConfig(width=9, heads=2), r"width 9 with 2 heads"),
        (lambda: MaskedConfig(decode_ratio=0.0), r"--task\.decode-ratio 0\.0"),
        (lambda: MaskedConfig(decoder_width=100, decoder_heads=3), r"no multiple"),
    ],
)
def test_settings_out_of_range_are_named_as_on_the_command_line(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
