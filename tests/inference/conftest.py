"""Tiny runs of each task, shared by the tests of what one does with them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from matinee.data.clips import ClipSpec, View, plan_evaluation_clip
from matinee.data.device import to_video
from matinee.inference.load import load_run
from matinee.media.color import ycbcr_to_rgb
from matinee.models.config import Joint, ModelConfig, Shift
from matinee.pack.annotations import read_table
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.index import index_videos
from matinee.tasks.config import ClipTextConfig, ContrastiveConfig, MaskedConfig
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from matinee.training.loop import train

CAPTIONS = [
    ("red_square", "a red square\nsomething red that drifts"),
    ("blue_disc", "a blue disc rolls"),
    ("red_square", "a red square stands still"),
    ("green_bar", "a green bar falls"),
    ("blue_disc", "a blue disc flies past"),
    ("green_bar", "a green bar leans over"),
]


def run_of(out, data, **sections):
    """Train one epoch and return the run's folder."""
    train(
        TrainConfig(
            data=DataConfig(path=str(data), workers=1, mode="threads"),
            run=RunConfig(out=str(out), device="cpu"),
            optim=OptimConfig(name="adamw", batch_size=2, epochs=1, lr=1e-3, warmup_epochs=0),
            **sections,
        )
    )
    return out


@pytest.fixture(scope="session")
def captions_pack(film, tmp_path_factory) -> Path:
    """Six short films with labels and captions, the last two held out."""
    root = tmp_path_factory.mktemp("captions")
    with (root / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "split", "text"])
        for i, (label, text) in enumerate(CAPTIONS):
            film(root / f"{i}.mp4", frames=20 + i, size=(64, 48), seed=i)
            rows.writerow([f"{i}.mp4", label, "val" if i > 3 else "train", text])
    index_videos(root / "captions.pack", read_table(root / "labels.csv", root))
    return root / "captions.pack"


@pytest.fixture(scope="session")
def contrastive_run(captions_pack, tmp_path_factory) -> Path:
    return run_of(
        tmp_path_factory.mktemp("runs") / "contrastive",
        captions_pack,
        model=ModelConfig("test_resnet", Shift(), dropout=0.0),
        task=ContrastiveConfig(text=ClipTextConfig(width=32, heads=2, layers=1), embed_dim=8),
        clip=ClipSpec(frames=4, size=32),
    )


@pytest.fixture(scope="session")
def causal_run(clips_pack, tmp_path_factory) -> Path:
    return run_of(
        tmp_path_factory.mktemp("runs") / "causal",
        clips_pack,
        model=ModelConfig("test_resnet", Shift(causal=True), dropout=0.0),
        clip=ClipSpec(frames=4, size=32, sampling="dense", stride=3, center_scale=0.75),
    )


@pytest.fixture(scope="session")
def masked_run(clips_pack, tmp_path_factory) -> Path:
    return run_of(
        tmp_path_factory.mktemp("runs") / "masked",
        clips_pack,
        model=ModelConfig("test_vit", Joint(tubelet=2, positions="sine"), patch_size=8),
        task=MaskedConfig(mask_ratio=0.75, decoder_depth=1, decoder_width=24, decoder_heads=2),
        clip=ClipSpec(frames=4, size=32),
    )


@pytest.fixture(scope="session")
def clip_of():
    """`clip_of(run, pack, row, view)`: float32 [1, 3, T, H, W], planned and read by itself."""

    def read(run, pack_path, row, view=View()):  # noqa: B008 - frozen
        loaded, pack = load_run(run, device="cpu"), Pack(pack_path)
        info, spec = pack.info(row), loaded.config.clip
        plan = plan_evaluation_clip(info, spec, view)
        frames = [frame - info.first_frame for frame in plan.frames]
        size = (spec.size, spec.size)
        i420 = pack.read(row, frames, size=size, box=plan.box, pixels="i420")
        fmt = pack.formats[info.codec]
        affine = ycbcr_to_rgb(fmt.matrix, fmt.full_range)[None].astype(np.float32)
        norm = loaded.normalisation
        return to_video(
            torch.from_numpy(i420)[None], torch.from_numpy(affine), None, size=size,
            mean=norm.mean, std=norm.std,
        )  # fmt: skip

    return read
