"""Evaluating a run and predicting with it, end to end on a small pack."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score

from matinee.cli import main
from matinee.data.clips import ClipSpec, View, plan_evaluation_clip
from matinee.errors import ConfigError, MatineeError
from matinee.evaluation.zero_shot import VIDEO_TEMPLATES
from matinee.inference.embed import embed
from matinee.inference.evaluate import evaluate
from matinee.inference.load import load_run
from matinee.inference.predict import predict
from matinee.inference.zero_shot import zero_shot
from matinee.models.config import ModelConfig
from matinee.pack.annotations import read_table
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.index import index_videos
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
                from matinee.data.device import to_video
                from matinee.media.color import ycbcr_to_rgb

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


def test_folders_give_the_videos_below_them(run, film, tmp_path):
    """In order of their names, once each; what lies beside them is said and skipped."""
    first, second = tmp_path / "b" / "x.mp4", tmp_path / "b" / "inner" / "y.mkv"
    for path in (first, second):
        film(path, frames=12, size=(64, 48))
    (tmp_path / "b" / "notes.txt").write_text("beside")
    (tmp_path / "b" / ".hidden.mp4").touch()
    (tmp_path / "b" / ".cache").mkdir()
    (tmp_path / "b" / ".cache" / "z.mp4").touch()
    (tmp_path / "b" / "inner" / "loop").symlink_to(tmp_path / "b")
    said, steps = [], []
    rows = predict(
        run, [tmp_path / "b", first], device="cpu", views=(1, 1), say=said.append,
        on_progress=lambda done, total: steps.append((done, total)),
    )  # fmt: skip
    assert [row["file"] for row in rows] == [str(second), str(first), str(first)]
    assert rows[1] == rows[2] and steps == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert said == [
        f"skipped 2: {tmp_path}/b/.hidden.mp4 (a hidden file), "
        f"{tmp_path}/b/notes.txt (not a video by its name)"
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="is a folder without videos"):
        predict(run, [tmp_path / "empty"], device="cpu")


def test_a_contrastive_run_tells_classes_by_their_names(
    contrastive_run, captions_pack, clip_of, capsys
):
    """Each view's vector, their mean against each class's prompts, one by one in float64."""
    labels = ["red_square", "blue disc", "nothing at all"]
    file = captions_pack.parent / "1.mp4"
    args = ["predict", str(contrastive_run), str(file), "--labels", ",".join(labels), "--views",
            "2x1", "--device", "cpu", "--json", "-"]  # fmt: skip
    assert main(args) == 0
    (row,) = json.loads(capsys.readouterr().out)
    model = load_run(contrastive_run, device="cpu").task.model
    with torch.no_grad():
        views = [model.embed_video(clip_of(contrastive_run, captions_pack, 1, View(t, 2)))[0]
                 for t in range(2)]  # fmt: skip
        clip = torch.stack(views).double().mean(dim=0)
        scores = []
        for label in ("red square", "blue disc", "nothing at all"):
            prompts = [template.format(label) for template in VIDEO_TEMPLATES]
            texts = model.embed_text(model.text.tokenize(prompts).ids).double().mean(dim=0)
            scores.append(torch.cosine_similarity(texts, clip, dim=0))
        wanted = (torch.stack(scores) * model.logit_scale.double().exp()).softmax(dim=0)
    found = {entry["label"]: entry["probability"] for entry in row["classes"]}
    assert [found[label] for label in labels] == pytest.approx(wanted.tolist(), abs=1e-5)


def test_labels_and_runs_must_fit_each_other(run, contrastive_run, masked_run, captions_pack):
    file = [captions_pack.parent / "1.mp4"]
    with pytest.raises(ConfigError, match="has classes of its own"):
        predict(run, file, labels=["a"], device="cpu")
    with pytest.raises(ConfigError, match='name them with --labels "one,another"'):
        predict(contrastive_run, file, device="cpu")
    with pytest.raises(ConfigError, match="is a run of masked: predict names classes"):
        predict(masked_run, file, labels=["a"], device="cpu")
    with pytest.raises(ConfigError, match="class 'a' is given twice"):
        predict(contrastive_run, file, labels=["a", "b", "a"], device="cpu")
    with pytest.raises(ConfigError, match="class '' is blank"):
        predict(contrastive_run, file, labels=["a", ""], device="cpu")


def test_zero_shot_accuracy_is_that_of_the_nearest_class_name(contrastive_run, captions_pack):
    """Predicted class by class from `embed`'s vectors; F1 and accuracy by scikit-learn."""
    report = zero_shot(
        contrastive_run, split="split=train,val", templates=["a {}", "{} here"], workers=1,
        device="cpu",
    )  # fmt: skip
    model = load_run(contrastive_run, device="cpu").task.model
    vectors = embed(contrastive_run, workers=1, device="cpu").vectors[:6]
    classes = ["blue_disc", "green_bar", "red_square"]
    with torch.no_grad():
        names = [name.replace("_", " ") for name in classes]
        pairs = [model.embed_text(model.text.tokenize([f"a {n}", f"{n} here"]).ids) for n in names]
    means = np.stack([pair.double().mean(dim=0).numpy() for pair in pairs])
    cosine = vectors @ means.T / np.linalg.norm(means, axis=1)
    labels = Pack(captions_pack).samples.column("label").to_pylist()
    predicted = [classes[k] for k in cosine.argmax(axis=1)]
    rows = report["predictions"]
    assert [(row["label"], row["predicted"]) for row in rows] == list(
        zip(labels, predicted, strict=True)
    )
    assert report["top1"] == pytest.approx(accuracy_score(labels, predicted))
    assert report["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert report["zero_shot"] and report["samples"] == 6 and report["classes"] == classes
    saved = contrastive_run / "zero-shot-captions.pack-split=train,val-1x1.json"
    assert json.loads(saved.read_text()) == report


def test_zero_shot_needs_a_contrastive_run_and_labels(run, contrastive_run, tmp_path, film):
    with pytest.raises(ConfigError, match="classes by name need a contrastive run"):
        zero_shot(run, device="cpu")
    film(tmp_path / "0.mp4", frames=12)
    (tmp_path / "t.csv").write_text("path,text\n0.mp4,no label\n")
    index_videos(tmp_path / "p", read_table(tmp_path / "t.csv", tmp_path))
    with pytest.raises(ConfigError, match="has no labels to tell"):
        zero_shot(contrastive_run, data=tmp_path / "p", device="cpu")
    with pytest.raises(ConfigError, match=r"no \{\} where the class's name goes"):
        zero_shot(contrastive_run, templates=["a clip"], device="cpu")


def test_what_is_no_run_is_refused(tmp_path):
    """Missing folder; folder without checkpoint."""
    with pytest.raises(ConfigError, match="is no run"):
        load_run(tmp_path / "nothing")
    config = TrainConfig(data=DataConfig(path="p"), run=RunConfig(out="r"))
    (tmp_path / "config.json").write_text(config.to_json())
    with pytest.raises(MatineeError, match="no checkpoint yet"):
        load_run(tmp_path)
