"""Recipes: the published numbers, networks of the published size, and tiny versions that run."""

import csv
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image

from matinee.cli import main
from matinee.data.clips import ClipSpec
from matinee.errors import ConfigError
from matinee.inference.evaluate import evaluate
from matinee.pack.annotations.table import read_table
from matinee.pack.images.writer import write_images
from matinee.pack.profiles import make_profile
from matinee.pack.writing.writer import write_pack
from matinee.recipes import GROUPS, RECIPES, SOMETHING_V2_SWAPS, tiny
from matinee.tasks.build import build_task
from matinee.tasks.masked import MaskedTask
from matinee.tasks.vocabulary import Vocabulary
from matinee.training.config import TrainConfig
from matinee.training.loop import train
from matinee.training.optim.schedule import learning_rate
from matinee.training.show.progress import Silent
from matinee.training.state.runfolder import RunFolder

# The command lines of TSM's scripts (github.com/mit-han-lab/temporal-shift-module), the defaults
# and MODEL_ZOO of AVION's (github.com/zhaoyue-zephyrus/AVION), VideoMAE's FINETUNE and PRETRAIN
# (github.com/MCG-NJU/VideoMAE), DeiT's Table 9 and the texts of ResNet and Wide ResNet.
TSM = {
    "clip.frames": 8, "clip.size": 224, "clip.crop": "multi-scale", "clip.flip": "horizontal",
    "clip.center_scale": 0.875, "optim.name": "sgd", "optim.momentum": 0.9,
    "optim.weight_decay": 1e-4, "optim.clip_norm": 20, "optim.head_lr": 5,
    "optim.warmup_epochs": 0, "model.dropout": 0.5, "model.partial_bn": False,
}  # fmt: skip
DENSE = TSM | {
    "peak": 0.01, "optim.batch_size": 64, "optim.epochs": 100, "drops": [40, 80],
    "clip.sampling": "dense", "clip.stride": 8, "run.views": "10x3",
}  # fmt: skip
CLIP = {
    "clip.size": 224, "clip.scale": (0.5, 1.0), "clip.center_scale": 1.0, "clip.flip": "none",
    "clip.sampling": "uniform", "optim.clip_norm": None, "run.views": "1x1",
}  # fmt: skip
EGO4D = CLIP | {
    "clip.frames": 4, "optim.name": "adamw", "peak": 3e-5, "last": 3e-5,
    "optim.betas": (0.9, 0.999), "optim.weight_decay": 0.01, "optim.epochs": 5,
    "task.learn_temperature": False, "task.temperature": 0.07, "task.embed_dim": 256,
    "task.text.quick_gelu": True,
}  # fmt: skip
SOFT = {"task.label_smoothing": 0.1, "task.mixup": 0.8, "task.cutmix": 1.0, "model.drop_path": 0.1}
MAE = {
    "clip.frames": 16, "clip.stride": 4, "clip.sampling": "dense", "clip.size": 224,
    "clip.flip": "horizontal", "optim.name": "adamw", "optim.weight_decay": 0.05,
    "optim.batch_size": 256, "model.temporal.tubelet": 2, "model.temporal.positions": "sine",
    "model.dropout": 0.0, "optim.clip_norm": None,
}  # fmt: skip
CIFAR = {"clip.frames": 1, "clip.size": 32, "clip.crop": "pad", "clip.flip": "horizontal"}
ERASED = {  # timm's and SlowFast's RandomErasing, mode "pixel", as both recipes call it
    "clip.erasing": 0.25, "clip.erasing_fill": "noise", "clip.erasing_area": (0.02, 1 / 3),
    "clip.erasing_aspect": (0.3, 1 / 0.3), "clip.erasing_count": (1, 1),
    "clip.rand_deviation": 0.5, "clip.rand_probability": 0.5,
}  # fmt: skip
PUBLISHED = {
    "tsm_kinetics": DENSE,
    "i3d_333_kinetics": DENSE | {"model.temporal.kernel": "3x3x3"},
    "i3d_311_kinetics": DENSE | {"model.temporal.kernel": "3x1x1"},
    "tsn_kinetics": TSM | {
        "peak": 0.02, "optim.batch_size": 128, "optim.epochs": 50, "drops": [20, 40],
        "clip.sampling": "uniform",
    },
    "tsm_something": TSM | {
        "peak": 0.01, "optim.batch_size": 64, "optim.epochs": 50, "drops": [20, 40],
        "clip.sampling": "uniform", "clip.flip": "none", "run.views": "2x3",
    },
    "clip_ego4d": EGO4D | {"optim.batch_size": 8 * 256, "parts": 256},
    "clip_ego4d_large": EGO4D | {"optim.batch_size": 8 * 112, "parts": 112},
    "mir_epic100": CLIP | {
        "clip.frames": 16, "optim.name": "adamw", "peak": 3e-5, "last": 1e-5,
        "optim.warmup_epochs": 1, "optim.epochs": 100, "optim.weight_decay": 0.01,
        "optim.batch_size": 8 * 64, "task.loss": "max-margin", "task.margin": 0.2,
        "task.graded": False,
    },
    "cls_epic100": CLIP | SOFT | {
        "clip.frames": 16, "optim.name": "sgd", "peak": 0.003 * 4, "last": 1e-5 * 4,
        "optim.warmup_epochs": 2, "optim.epochs": 100, "optim.weight_decay": 4e-5,
        "optim.batch_size": 8 * 64, "model.dropout": 0.5, "task.labels": "verb+noun",
    },
    "videomae_kinetics": MAE | {
        "peak": 1.5e-4, "last": 1e-5, "optim.betas": (0.9, 0.95), "optim.warmup_epochs": 40,
        "optim.epochs": 800, "clip.crop": "multi-scale", "task.mask_ratio": 0.9,
        "task.decoder_depth": 4, "task.decode_ratio": 1.0, "task.normalise_targets": True,
    },
    "videomae_finetune_kinetics": MAE | SOFT | {
        "peak": 1.5e-3, "last": 1e-6, "optim.betas": (0.9, 0.999), "optim.warmup_epochs": 5,
        "optim.epochs": 100, "optim.layer_decay": 0.75, "clip.crop": "random-resized",
        "clip.scale": (0.08, 1.0), "run.views": "5x3", "clip.rand_augment": 4,
        "clip.rand_magnitude": 7, **ERASED,
    },
    "resnet50_cifar": CIFAR | {
        "peak": 0.1, "optim.batch_size": 128, "optim.weight_decay": 5e-4, "optim.epochs": 200,
    },
    "vit_cifar": CIFAR | SOFT | {
        "peak": 5e-4 / 4, "last": 1e-5 / 4, "optim.batch_size": 128, "optim.weight_decay": 0.05,
        "optim.epochs": 300, "optim.warmup_epochs": 5, "clip.rand_augment": 2,
        "clip.rand_magnitude": 9, **ERASED,
    },
    "efficientnet_cifar": CIFAR | {"model.dropout": 0.2, "model.drop_path": 0.2},
}  # fmt: skip


def field(config, path):
    """A field by its dotted name; "peak" and "last" are rates that the loop really gives, "drops"
    the epochs where it falls to a tenth, "parts" the clips of one pass."""
    optim = config.optim
    rates = [learning_rate(optim, step, 1, optim.batch_size) for step in range(optim.epochs)]
    match path:
        case "peak":
            return max(rates)
        case "last":
            return learning_rate(optim, optim.epochs - 1e-4, 10_000, optim.batch_size)
        case "drops":
            return [i for i in range(1, len(rates)) if rates[i] < 0.2 * rates[i - 1]]
        case "parts":
            return optim.batch_size // optim.accumulate
    value = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_holds_the_published_numbers(name):
    """Each as the sources above write it."""
    config = RECIPES[name]("data", "out")
    found = {path: field(config, path) for path in PUBLISHED[name]}
    assert found == {
        path: pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
        for path, value in PUBLISHED[name].items()
    }


def test_every_recipe_says_what_it_is_and_where_it_is_from(capsys):
    """One line each in the list of recipes, under what it learns from."""
    assert set(RECIPES) == {"tsm", "tsn", "tsm_motion"} | set(PUBLISHED)
    assert main(["train", "--help"]) == 0
    said = capsys.readouterr().out
    assert [group for group in GROUPS if f"\n{group}:\n" not in said] == []
    for name, make in RECIPES.items():
        assert f"  {name} " in said
        assert make.__doc__ is not None and name == make.__name__
        assert name == "tsm_motion" or "Source:" in make.__doc__
    assert max(map(len, said.splitlines())) <= 100


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_its_file(name):
    """Full and tiny, with all kinds of its parts."""
    config = RECIPES[name]("data", "out")
    for either in (config, tiny(config)):
        assert TrainConfig.from_json(either.to_json()) == either
    assert (config.data.path, config.run.out) == ("data", "out")


# OpenAI's CLIP has 149,620,737 parameters with ViT-B/16 and 427,616,513 with ViT-L/14, scale
# included; of its projections to 512 and 768 numbers 256 remain, and frames add T embeddings.
VIT_B, VIT_L = 149_620_737 - 1 - 256 * (768 + 512), 427_616_513 - 1 - 512 * (1024 + 768)
CLIP_VISION = 86_192_640 - 768 * 512  # without its projection
HEAD = 400 * 769
SIZES = {
    "tsm_kinetics": (24.3e6, 0.1e6),  # TSM, arXiv 1811.08383; with 400 classes
    "tsn_kinetics": (24.3e6, 0.1e6),
    "i3d_333_kinetics": (47.0e6, 0.1e6),
    "i3d_311_kinetics": (33.0e6, 0.1e6),
    "clip_ego4d": (VIT_B + 4 * 768, 0),
    "mir_epic100": (VIT_B + 16 * 768, 0),
    "clip_ego4d_large": (VIT_L + 4 * 1024, 0),
    "cls_epic100": (CLIP_VISION + 16 * 768 + HEAD, 0),
    "videomae_finetune_kinetics": (87e6, 0.5e6),  # VideoMAE's model zoo
    "videomae_kinetics": (94.2e6, 0.1e6),  # its published file, counted
}


@pytest.mark.parametrize("name", SIZES)
def test_a_network_has_the_published_number_of_parameters(name, monkeypatch):
    """Built without memory, for Kinetics' 400 classes."""
    monkeypatch.setattr(MaskedTask, "masks", lambda *_: None)  # its check needs numbers
    config = RECIPES[name]("data", "out")
    with torch.device("meta"):
        built = build_task(
            config.task, replace(config.model, pretrained="none"), frames=config.clip.frames,
            size=config.clip.size, vocabulary=Vocabulary(tuple(map(str, range(400)))),
        )  # fmt: skip
    wanted, within = SIZES[name]
    assert sum(p.numel() for p in built.task.parameters()) == pytest.approx(wanted, abs=within)


def test_mirrored_something_changes_sides():
    """Left and right, both ways, whatever the other classes."""
    names = sorted(name for pair in SOMETHING_V2_SWAPS for name in pair.split("="))
    classes = ("Bending something", *names, "Wiping something off of something")
    spec = ClipSpec(flip="horizontal", flip_swap=SOMETHING_V2_SWAPS)
    swaps = spec.swaps(classes)
    assert swaps == {1: 2, 2: 1, 3: 4, 4: 3, 5: 6, 6: 5}
    words = {"left": "right", "right": "left"}
    for a, b in swaps.items():
        mirrored = [words.get(word, word) for word in classes[a].split()]
        assert " ".join(mirrored) == classes[b]


@pytest.fixture(scope="module")
def data(film, tmp_path_factory):
    """A pack with labels, captions, verbs and nouns, and a set of images: two classes, 8 and 4."""
    root = tmp_path_factory.mktemp("recipes")
    rng = np.random.default_rng(0)
    with (root / "clips.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "split", "text", "verb", "noun"])
        for i in range(12):
            label, split = "ab"[i % 2], "train" if i < 8 else "val"
            film(root / f"{i}.mp4", frames=20, size=(64, 48), seed=i)
            rows.writerow([f"{i}.mp4", label, split, f"thing {label} {i}", f"do {label}", "thing"])
            folder = root / "images" / split / label
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
    annotations = read_table(root / "clips.csv", root)
    write_pack(root / "clips.pack", annotations, make_profile("layered", crf=30), workers=1)
    write_images(root / "cifar.images", root / "images")
    return {"clips": root / "clips.pack", "images": root / "cifar.images"}


class Facts(Silent):
    """Keeps what a run says of itself."""

    def start(self, *, facts, headline, **_):
        self.facts, self.headline = facts, headline


def run_tiny(name, data, out, **model):
    kind = "images" if name.endswith("_cifar") else "clips"
    config = tiny(RECIPES[name](str(data[kind]), str(out)))
    facts = Facts()
    config = replace(config, model=replace(config.model, **model))
    return train(config, progress=facts), facts


@pytest.fixture(scope="module")
def tiny_run(data, tmp_path_factory):
    """`tiny_run(name)`: a recipe's tiny run, made once; (result, facts)."""
    root = tmp_path_factory.mktemp("runs")
    return cache(lambda name: run_tiny(name, data, root / name))


@pytest.mark.parametrize("name", RECIPES)
def test_a_tiny_recipe_trains_and_evaluates(name, tiny_run):
    """One epoch of two steps, then the whole of `matinee eval`."""
    result, facts = tiny_run(name)
    rows = [row for row in RunFolder(result.out).rows() if row["kind"] == "train"]
    assert len(rows) == result.steps == 2
    assert all(math.isfinite(row["loss"]) for row in rows)
    assert facts.headline in result.val
    report = evaluate(result.out, device="cpu")
    assert report["samples"] == 4
    assert report[facts.headline] == pytest.approx(result.val[facts.headline], rel=1e-5)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("videomae_kinetics", "videomae_finetune_kinetics"),
        ("clip_ego4d", "mir_epic100"),
        ("clip_ego4d", "cls_epic100"),
    ],
)
def test_fine_tuning_starts_from_the_run_before(first, then, data, tiny_run, tmp_path):
    """By --model.pretrained RUN/last.pt; the first block is the one that was saved."""
    before, _ = tiny_run(first)
    weights = str(before.out / "last.pt")
    after, facts = run_tiny(then, data, tmp_path / "run", pretrained=weights)
    assert any(f"tensors from {weights}" in fact for fact in facts.facts)
    old, new = (
        next(value for name, value in state.items() if "blocks.0.attn.qkv.weight" in name)
        for state in (RunFolder(r.out).load_checkpoint()["state"]["model"] for r in (before, after))
    )
    assert 0 < (old - new).abs().max() < 0.01  # two small steps away


def test_the_command_line_runs_a_tiny_recipe_with_changes(data, tmp_path, capsys):
    """Fields given beside --tiny hold; the end tells the scores and what to do next."""
    out = tmp_path / "run"
    common = ["--tiny", "--data", str(data["clips"]), "--out", str(out), "--progress", "none"]
    assert main(["train", "tsn_kinetics", *common, "--clip.frames", "2"]) == 0
    config = RunFolder(out).config()
    assert (config.model.backbone, config.clip.frames, config.clip.size) == ("resnet10t", 2, 32)
    said = capsys.readouterr().out
    assert "validation top-1" in said and f"next: matinee eval {out} --views 3x1" in said


@pytest.mark.parametrize(
    ("name", "score", "advice"),
    [("mir_epic100", "R@1 text → video", "matinee search"),
     ("videomae_kinetics", "validation loss", "--model.pretrained {}/last.pt")],
)  # fmt: skip
def test_the_end_of_a_run_fits_its_task(name, score, advice, data, tmp_path, capsys):
    """Retrieval is searched with, an encoder fine-tuned."""
    out = tmp_path / "run"
    args = ["train", name, "--tiny", "--data", data["clips"], "--out", out, "--progress", "none",
            "--no-report"]  # fmt: skip
    assert main([str(arg) for arg in args]) == 0
    said = capsys.readouterr().out
    assert score in said and advice.format(out) in said


def test_layer_decay_needs_a_vit(data, tmp_path):
    """And a classifier's rate a classifier; each named by its flag."""
    for name, change, words in (
        ("tsm", {"layer_decay": 0.75}, "--optim.layer-decay 0.75 is for fine-tuning a ViT"),
        ("videomae_kinetics", {"head_lr": 5.0}, "--optim.head-lr 5.0: this network has no"),
    ):
        config = tiny(RECIPES[name](str(data["clips"]), str(tmp_path / "run")))
        with pytest.raises(ConfigError, match=words):
            train(replace(config, optim=replace(config.optim, **change)))
