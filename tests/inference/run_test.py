"""Evaluating a run and predicting with it, end to end on a small pack."""

import json

import numpy as np
import pytest
import torch

from matinee.data.clips import ClipSpec, View, plan_evaluation_clip
from matinee.errors import ConfigError, MatineeError
from matinee.inference.evaluate import evaluate
from matinee.inference.load import load_run
from matinee.inference.predict import predict
from matinee.models.config import ModelConfig
from matinee.pack.reader import Pack
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from matinee.training.loop import train


@pytest.fixture(scope="module")
def run(clips_pack, tmp_path_factory):
    """A run of two epochs."""
    out = tmp_path_factory.mktemp("run") / "a"
    train(
        TrainConfig(
            data=DataConfig(path=str(clips_pack), workers=1),
            run=RunConfig(out=str(out), device="cpu"),
            model=ModelConfig(backbone="resnet10t"),
            clip=ClipSpec(frames=4, size=32),
            optim=OptimConfig(batch_size=4, epochs=2),
        )
    )
    return out


def test_probabilities_are_the_mean_over_views(run, clips_pack):
    """Each view planned, read and forwarded alone, in float64 mean."""
    report = evaluate(run, views=(3, 2), batch_size=5, workers=1)
    loaded, pack = load_run(run, device="cpu"), Pack(clips_pack)
    spec = loaded.config.clip
    for row in report["predictions"]:
        info = pack.info(row["index"])
        found = []
        for t in range(3):
            for s in range(2):
                plan = plan_evaluation_clip(info, spec, View(t, 3, s, 2))
                frames = [f - info.first_frame for f in plan.frames]
                i420 = pack.read(row["index"], frames, size=(32, 32), box=plan.box, pixels="i420")
                from matinee.data.device import to_video, ycbcr_to_rgb

                fmt = pack.formats[info.codec]
                affine = torch.tensor(ycbcr_to_rgb(fmt.matrix, fmt.full_range)[None]).float()
                video = to_video(
                    torch.from_numpy(i420)[None], affine, None, size=(32, 32),
                    mean=loaded.normalisation.mean, std=loaded.normalisation.std,
                )  # fmt: skip
                with torch.no_grad():
                    found.append(loaded.task.model(video).softmax(1)[0].double().numpy())
        mean = np.mean(found, axis=0)
        assert report["classes"][int(mean.argmax())] == row["predicted"]
        assert row["probability"] == pytest.approx(mean.max(), abs=1e-5)


def test_the_evaluation_lands_beside_the_run_and_says_what_it_measured(run):
    """Every metric, and what it was measured on."""
    report = evaluate(run, views=(2, 1), workers=1)
    saved = json.loads((run / "eval-val-2x1.json").read_text())
    assert saved == report
    fields = {"top1", "top5", "macro_f1", "per_class", "confusion", "samples", "skipped"}
    assert fields < set(saved) and saved["samples"] == 6 and saved["step"] == 6


def test_evaluating_a_selection_by_column_and_an_unknown_split(run):
    """`column=value`, and a clear word otherwise."""
    assert evaluate(run, split="label=left", workers=1)["samples"] == 9
    with pytest.raises(ConfigError, match="no sample with split 'tset'"):
        evaluate(run, split="tset")


def test_predictions_of_a_file_equal_those_of_its_pack_of_originals(run, film, tmp_path):
    """Indexing in place reads the original's frames; repeated calls agree."""
    path = film(tmp_path / "new film.mp4", frames=40, size=(80, 64), seed=5)
    (row,) = predict(run, [path], top=2, device="cpu")
    assert row == predict(run, [path], top=2, device="cpu")[0]
    assert [set(entry) for entry in row["classes"]] == [{"label", "probability"}] * 2
    assert sum(entry["probability"] for entry in row["classes"]) == pytest.approx(1)


def test_a_film_with_uneven_frame_times_is_normalised_aloud(run, film, tmp_path):
    """It is packed to a temporary folder, and that is said."""
    times = [0, 1, 2, 9, 10, 11, 30, 31, 40, 41, 42, 43]
    path = film(tmp_path / "vfr.mkv", frames=12, times=times)
    said = []
    (row,) = predict(run, [path], device="cpu", say=said.append)
    assert "classes" in row and len(said) == 1 and "evenly spaced" in said[0]


def test_files_that_are_no_videos_come_back_with_a_reason(run, tmp_path):
    """The others are predicted all the same."""
    (tmp_path / "text.mp4").write_text("no video")
    rows = predict(run, [tmp_path / "text.mp4", tmp_path / "gone.mp4"], device="cpu")
    assert "cannot be opened as video" in rows[0]["error"]
    assert "No such file" in rows[1]["error"]


def test_what_is_no_run_is_refused(tmp_path):
    """Missing folder; folder without checkpoint."""
    with pytest.raises(ConfigError, match="is no run"):
        load_run(tmp_path / "nothing")
    config = TrainConfig(data=DataConfig(path="p"), run=RunConfig(out="r"))
    (tmp_path / "config.json").write_text(config.to_json())
    with pytest.raises(MatineeError, match="no checkpoint yet"):
        load_run(tmp_path)
