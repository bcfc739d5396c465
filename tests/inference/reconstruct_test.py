"""Reconstruction pictures: the clips and masks of evaluation, patch by patch."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from matinee.data.clips import ClipSpec, View, plan_evaluation_clip
from matinee.data.random import integer_seed
from matinee.errors import ConfigError, MatineeError
from matinee.inference.load import load_run
from matinee.inference.reconstruct import reconstruct
from matinee.models.config import Joint, ModelConfig
from matinee.models.masks import tube_mask
from matinee.pack.reading.reader import Pack
from matinee.tasks.build import build_task
from matinee.tasks.config import ClassificationConfig, MaskedConfig
from matinee.tasks.vocabulary import Vocabulary
from matinee.training.config import DataConfig, RunConfig, TrainConfig
from matinee.training.state.runfolder import RunFolder

PATCH, TUBELET, GRID = 8, 2, 4


def write_run(out, pack, *, task=None, seed=3):
    """A run with the weights that it starts from."""
    torch.manual_seed(0)
    masked = MaskedConfig(mask_ratio=0.5, decoder_depth=1, decoder_width=24, decoder_heads=2)
    model = ModelConfig(
        backbone="vit_tiny_patch16_224", patch_size=PATCH,
        temporal=Joint(tubelet=TUBELET, positions="sine"),
    )  # fmt: skip
    config = TrainConfig(
        data=DataConfig(path=str(pack)), run=RunConfig(out=str(out), seed=seed),
        clip=ClipSpec(frames=4, size=PATCH * GRID), task=masked, model=model,
    )  # fmt: skip
    vocabulary = Vocabulary(())
    if task is not None:
        config = replace(config, task=task, model=ModelConfig(backbone="resnet10t"))
        vocabulary = Vocabulary(("left", "right"))
    folder = RunFolder(out)
    folder.create(config)
    built = build_task(
        config.task, config.model, frames=4, size=config.clip.size, vocabulary=vocabulary
    )
    state = {"model": built.task.model.state_dict(), "step": 0}
    folder.save_checkpoint({"state": state, "vocabulary": vocabulary.to_dict()})
    return out


@pytest.fixture(scope="module")
def run(clips_pack, tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run") / "mae", clips_pack)


@pytest.fixture(scope="module")
def pictures(run):
    """All six clips of the validation split."""
    return reconstruct(run, count=99, device="cpu")


def hidden_of(item):
    """bool [T', rows, columns] of the clip at a place of the split, as evaluation draws it."""
    seed = integer_seed(3, 0, item, "clip")
    return tube_mask(2, GRID * GRID, 0.5, seeds=[seed])[0].view(2, GRID, GRID).numpy()


def patches():
    """Every patch: its place in the mask, and its pixels in a video [T, H, W, 3]."""
    for t, row, column in np.ndindex(2, GRID, GRID):
        yield (
            (t, row, column),
            (
                slice(TUBELET * t, TUBELET * (t + 1)),
                slice(PATCH * row, PATCH * (row + 1)),
                slice(PATCH * column, PATCH * (column + 1)),
            ),
        )


def test_clips_are_those_of_evaluation(pictures, clips_pack):
    """Decoded apart from any loader: the middle frames and the centre crop."""
    pack = Pack(clips_pack)
    rows = pack.select("val").tolist()
    assert [p.sample for p in pictures] == [pack.info(row).id for row in rows]
    for picture, row in zip(pictures, rows, strict=True):
        info = pack.info(row)
        plan = plan_evaluation_clip(info, ClipSpec(frames=4, size=32), View())
        frames = [frame - info.first_frame for frame in plan.frames]
        expected = pack.read(row, frames, size=(32, 32), box=plan.box)
        difference = np.abs(picture.original_THWC.astype(int) - expected)
        assert difference.mean() < 4  # chroma is enlarged in another way


def test_hidden_patches_are_grey_and_visible_ones_untouched(pictures):
    drawn_anew = 0
    for item, picture in enumerate(pictures):
        hidden = hidden_of(item)
        for place, pixels in patches():
            original, masked, drawn = (
                video[pixels]
                for video in (picture.original_THWC, picture.masked_THWC, picture.drawn_THWC)
            )
            if hidden[place]:
                assert (masked == 128).all()
                drawn_anew += not np.array_equal(drawn, original)  # flat ones come out alike
            else:
                assert np.array_equal(masked, original) and np.array_equal(drawn, original)
    assert drawn_anew > 20


def test_drawn_patches_are_predictions_with_the_true_mean_and_deviation(run, pictures):
    """Numpy, one patch at a time, from what the network itself predicts."""
    model = load_run(run, device="cpu").task.model
    mean, std = (held.view(3).numpy() for held in (model.mean, model.std))
    for item, picture in enumerate(pictures[:2]):
        unit = picture.original_THWC / 255
        video = torch.from_numpy((unit - mean) / std).float().permute(3, 0, 1, 2)[None]
        hidden = hidden_of(item)
        with torch.no_grad():
            _, prediction = model(video, torch.from_numpy(hidden.reshape(1, -1)))
        predicted = iter(prediction[0].double().numpy())
        for place, pixels in patches():
            if not hidden[place]:
                continue
            true = unit[pixels].reshape(-1, 3)
            values = next(predicted).reshape(-1, 3)
            drawn = values * true.std(axis=0, ddof=1) + true.mean(axis=0)
            shown = picture.drawn_THWC[pixels].reshape(-1, 3)
            assert np.abs(shown - 255 * drawn.clip(0, 1)).max() < 2  # rounded to bytes, twice


def test_few_clips_are_spread_over_the_split_and_keep_their_masks(run, pictures):
    two = reconstruct(run, count=2, device="cpu")
    assert [p.sample for p in two] == [pictures[1].sample, pictures[4].sample]
    assert np.array_equal(two[1].masked_THWC, pictures[4].masked_THWC)
    (one,) = reconstruct(run, count=1, split="label=left", device="cpu")
    assert one.split == "label=left"


def test_without_validation_split_it_shows_training_clips(clips_pack, tmp_path, monkeypatch):
    run = write_run(tmp_path / "mae", clips_pack)
    monkeypatch.setattr(Pack, "splits", lambda self: {"train": 12})
    (one,) = reconstruct(run, count=1, device="cpu")
    assert one.split == "train"


def test_clips_that_cannot_be_read_are_left_out_or_refused(clips_pack, tmp_path):
    path = tmp_path / "damaged.pack"
    shutil.copytree(clips_pack, path)
    run = write_run(tmp_path / "mae", path)
    pack = Pack(path)
    rows = pack.select("val").tolist()
    destroy(pack, rows[:1])
    assert [p.sample for p in reconstruct(run, count=6, device="cpu")] == [
        pack.info(row).id for row in rows[1:]
    ]
    destroy(pack, rows[1:])
    with pytest.raises(MatineeError, match="no clip could be read"):
        reconstruct(run, count=6, device="cpu")


def destroy(pack, rows):
    """Overwrite the videos of samples with zeros."""
    for row in rows:
        info = pack.info(row)
        for part in pack.locate(info.video, range(info.num_frames)):
            with open(part.chunk.file, "r+b") as file:
                file.seek(part.chunk.offset)
                file.write(bytes(part.chunk.size))


def test_what_cannot_be_reconstructed_is_refused(clips_pack, tmp_path, run):
    other = write_run(tmp_path / "classes", clips_pack, task=ClassificationConfig())
    with pytest.raises(ConfigError, match="a run of classification"):
        reconstruct(other, device="cpu")
    with pytest.raises(ConfigError, match="count=0"):
        reconstruct(run, count=0, device="cpu")
    with pytest.raises(ConfigError, match="no sample with split 'tset'"):
        reconstruct(run, split="tset", device="cpu")
