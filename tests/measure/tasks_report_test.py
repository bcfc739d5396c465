"""Reports about runs of every task, alone and together on one page."""

import json
import shutil

import numpy as np
import pytest
from folders import (
    CAPTION,
    CLASSES,
    val_metrics,
    write_masked,
    write_other,
    write_retrieval,
    write_run,
    write_several,
)
from pages import read
from PIL import Image

from matinee.errors import ConfigError
from matinee.measure.report.retrievals import choose_captions
from matinee.measure.report.write import write_report
from matinee.pack.images.writer import write_images
from matinee.tasks.config import ClassificationConfig

pytest.importorskip("matplotlib")


def cells_of(page, heading):
    """The cells of the table row with that heading."""
    texts = [text for text in page.texts if text.strip()]
    at = texts.index(heading)
    return texts[at + 1 :]


def images(page):
    return [held for tag, held in page.tags if tag == "img"]


def plots(page):
    return [held["aria-label"] for tag, held in page.tags if tag == "svg" and "role" in held]


def test_runs_of_every_task_share_a_page(tmp_path, pack):
    runs = [
        write_run(tmp_path / "shift", pack, evaluated=True),
        write_retrieval(tmp_path / "dual", pack, ranks=(1, 2, 1, 3)),
        write_masked(tmp_path / "mae", pack),
    ]
    page = read(write_report(tmp_path / "r.html", runs))
    assert page.ids >= {
        "summary", "curves", "confusion", "examples", "retrieval", "reconstruction", "time",
        "configuration",
    }  # fmt: skip
    assert cells_of(page, "top-1")[0] == "75.0 %"
    assert cells_of(page, "text → video R@1")[0] == "50.0 %"
    assert cells_of(page, "text → video median rank")[0] == "1.5"
    assert cells_of(page, "video → text R@1")[0] == "25.0 %"
    assert cells_of(page, "MIR mAP (graded), average")[0] == "0.456"
    assert cells_of(page, "reconstruction loss")[0] == "0.9877"
    drawn = [told.split(" over epochs")[0] for told in plots(page) if "over epochs" in told]
    assert drawn == [
        "Training loss, classification", "Validation top-1", "Training top-1",
        "Training loss, contrastive", "Validation R@1, text → video", "Top-1 within the batch",
        "Training loss, masked", "Validation loss", "Learning rate",
    ]  # fmt: skip
    values = {run["name"]: run["scores"]["metrics"] for run in page.data["runs"]}
    assert values["mae"] == {"loss": 0.987654} and values["dual"]["t2v_r1"] == 0.5


def test_settings_that_a_run_does_not_have_are_a_dash(tmp_path, pack):
    runs = [
        write_run(tmp_path / "shift", pack, evaluated=True),
        write_masked(tmp_path / "mae", pack),
    ]
    page = read(write_report(tmp_path / "r.html", runs, examples=0))
    assert cells_of(page, "model.temporal.placement")[:2] == ['"residual"', "–"]
    assert cells_of(page, "model.temporal.tubelet")[:2] == ["–", "2"]
    assert cells_of(page, "model.temporal.kind")[:2] == ['"shift"', '"joint"']
    assert "data.path" not in page.texts  # alike


def test_sections_that_no_task_can_fill_are_left_out(tmp_path, pack):
    dual = write_retrieval(tmp_path / "dual", pack, ranks=(1, 1, 1, 1))
    assert not read(write_report(tmp_path / "r.html", [dual])).ids & {
        "confusion", "calibration", "examples", "reconstruction",
    }  # fmt: skip
    several = write_several(tmp_path / "several", pack)
    ids = read(write_report(tmp_path / "s.html", [several])).ids
    assert "examples" in ids and not ids & {"confusion", "calibration", "retrieval"}


def test_captions_show_their_clip_and_the_nearest_where_that_is_another(tmp_path, pack):
    runs = [
        write_retrieval(tmp_path / "first", pack, ranks=(1, 1, 1, 1)),
        write_retrieval(tmp_path / "last", pack, ranks=(1, 2, 1, 3)),
    ]
    page = read(write_report(tmp_path / "r.html", runs))
    shown = {found["text"]: found for found in page.data["retrievals"]}
    assert shown["caption 3"] == {
        "text": "caption 3",
        "sample": "val/b/1.mp4",
        "nearest": "val/a/0.mp4",
        "places": [
            {"run": "first", "rank": 1, "candidates": 4},
            {"run": "last", "rank": 3, "candidates": 4},
        ],
    }
    assert [found["sample"] == found["nearest"] for found in shown.values()].count(True) == 2
    assert len(images(page)) == (4 + 2) * 8
    assert page.text.count("nearest clip by last") == 2
    assert page.text.count(f"“{CAPTION}”") == 2  # of the nearest clips
    assert page.texts.count("✗ wrong") == 2 and page.texts.count("✓ right") == 6


def test_retrieval_without_evaluation_or_pack_says_so(tmp_path, pack):
    plain = write_retrieval(tmp_path / "plain", pack)
    page = read(write_report(tmp_path / "r.html", [plain]))
    assert "plain was not evaluated" in page.text and not images(page)
    assert cells_of(page, "text → video R@1")[0] == "50.0 %"
    moved = tmp_path / "moved.pack"
    shutil.copytree(pack, moved)
    gone = write_retrieval(tmp_path / "gone", moved, ranks=(1, 2, 3, 4))
    shutil.rmtree(moved)
    page = read(write_report(tmp_path / "s.html", [gone]))
    assert "is no pack" in page.text and not images(page)


def test_half_of_the_captions_are_mistakes_spread_over_the_table():
    rows = [{"text": i, "rank": 1 if i % 10 else 7} for i in range(100)]
    chosen = choose_captions(rows, 8)
    assert [row["rank"] > 1 for row in chosen] == [True, False] * 4
    places = sorted(row["text"] for row in chosen if row["rank"] == 1)
    assert len(set(places)) == 4 and places[0] < 25 and places[-1] > 75
    assert len(choose_captions(rows[:11], 8)) == 8  # two mistakes, so six right ones
    assert [row["rank"] for row in choose_captions(rows[10:11] * 9, 4)] == [7] * 4
    assert len(choose_captions(rows, 999)) == 100
    assert choose_captions(rows, 0) == choose_captions([], 5) == []


def test_masked_run_shows_three_rows_of_the_same_frames(tmp_path, pack):
    run = write_masked(tmp_path / "mae", pack)
    page = read(write_report(tmp_path / "r.html", [run]))
    shown = images(page)
    assert len(shown) == 4 * 3 * 4  # clips, rows, frames
    assert [held["alt"] for held in shown[:12:4]] == [
        "original, frame 1", "masked, frame 1", "reconstructed, frame 1",
    ]  # fmt: skip
    assert len({held["src"] for held in shown[:12]}) == 12
    assert "50 % are hidden" in page.text and "true patch's mean and deviation" in page.text
    again = write_report(tmp_path / "s.html", [run]).read_bytes()
    assert again == (tmp_path / "r.html").read_bytes()


def test_masked_run_whose_pack_or_checkpoint_is_gone_makes_a_page(tmp_path, pack):
    moved = tmp_path / "moved.pack"
    shutil.copytree(pack, moved)
    run = write_masked(tmp_path / "mae", moved)
    shutil.rmtree(moved)
    page = read(write_report(tmp_path / "r.html", [run]))
    assert "No reconstruction:" in page.text and "is no pack" in page.text
    (run / "last.pt").unlink()
    shutil.rmtree(run / "checkpoints")
    page = read(write_report(tmp_path / "s.html", [run]))
    assert "has no checkpoint yet" in page.text and not images(page)


def test_calibration_error_is_that_of_the_predictions(tmp_path, pack):
    """Fifteen bins and a loop."""
    run = write_run(tmp_path / "run", pack, evaluated=True)
    assert "calibration" not in read(write_report(tmp_path / "r.html", [run])).ids
    rng = np.random.default_rng(0)
    rows = [
        {"sample": f"val/{'ab'[i % 2]}/{i % 2}.mp4", "index": 4 + 3 * (i % 2),
         "label": CLASSES[i % 2], "predicted": CLASSES[int(rng.random() < 0.5)],
         "probability": float(rng.uniform(0.5, 1))}
        for i in range(60)
    ]  # fmt: skip
    file = run / "eval-val-1x1.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"ece": 0.5, "predictions": rows}))
    gaps = {}
    for row in rows:
        bin_ = int(np.ceil(row["probability"] * 15))
        gaps.setdefault(bin_, []).append((row["predicted"] == row["label"]) - row["probability"])
    error = sum(abs(sum(held)) for held in gaps.values()) / 60
    page = read(write_report(tmp_path / "r.html", [run]))
    assert f"run: expected calibration error {error:.3f}." in page.texts
    assert any(told.startswith("Accuracy over confidence") for told in plots(page))


def test_one_of_several_labels_is_right(tmp_path, pack):
    page = read(write_report(tmp_path / "r.html", [write_several(tmp_path / "run", pack)]))
    assert cells_of(page, "mAP, mean over classes")[0] == "0.321"
    assert page.texts.count("✓ right") == page.texts.count("✗ wrong") == 2
    right = [g for example in page.data["examples"] for g in example["guesses"] if g["right"]]
    assert {guess["predicted"] for guess in right} == {"jump"}


def test_pairs_of_verb_and_noun_say_what_counts(tmp_path, pack):
    val = {**val_metrics([[2, 0], [1, 1]]), "top1": 0.125, "verb_top1": 0.75, "verb_top5": 1.0,
           "noun_top1": 0.25, "noun_top5": 1.0}  # fmt: skip
    task = ClassificationConfig(labels="verb+noun")
    run = write_other(
        tmp_path / "run", pack, task, train={"loss": 2.0, "top1": 0.5}, val=val, evaluation=[]
    )
    page = read(write_report(tmp_path / "r.html", [run]))
    assert cells_of(page, "top-1")[0] == "12.5 %" and cells_of(page, "verb top-1")[0] == "75.0 %"
    assert "count actions, verb and noun together" in page.text
    assert "Verbs, each the sum of its actions." in page.text
    assert "cannot be wrong" not in page.text  # how many actions there are, nobody says


def test_images_are_shown_as_they_are(tmp_path):
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in "ab":
            (tmp_path / "pictures" / split / label).mkdir(parents=True)
            for i in range(2):
                picture = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
                picture.save(tmp_path / "pictures" / split / label / f"{i}.png")
    write_images(tmp_path / "set", tmp_path / "pictures")
    run = write_run(tmp_path / "run", tmp_path / "set", evaluated=False)
    page = read(write_report(tmp_path / "r.html", [run]))
    assert [held["alt"] for held in images(page)] == ["picture"] * 4
    assert "Frames are evenly spaced" not in page.text
    assert ("div", {"class": "cards"}) in page.tags


@pytest.mark.parametrize("key", ["sample", "index", "label", "predicted", "probability"])
def test_a_prediction_that_is_not_whole_is_damaged(tmp_path, pack, key):
    damaged(write_run(tmp_path / "run", pack, evaluated=True), key, None, f"1 has no '{key}'")


@pytest.mark.parametrize(
    "key, value, said",
    [
        ("sample", None, "1 has no 'sample'"), ("index", "4", "'index', or one of another type"),
        ("text", None, "1 has no 'text'"), ("rank", None, "1 has no 'rank'"),
        ("nearest", None, "1 has no 'nearest'"),
        ("nearest", "val/x.mp4", "'val/x.mp4' is nearest to a caption and no sample"),
    ],
)  # fmt: skip
def test_a_caption_that_is_not_whole_is_damaged(tmp_path, pack, key, value, said):
    damaged(write_retrieval(tmp_path / "run", pack, ranks=(1, 2, 1, 3)), key, value, said)


def damaged(run, key, value, said):
    """The second prediction has another value of `key`, or none: the page is refused."""
    file = run / "eval-val-1x1.json"
    held = json.loads(file.read_text())
    del held["predictions"][1][key]
    if value is not None:
        held["predictions"][1][key] = value
    file.write_text(json.dumps(held))
    with pytest.raises(ConfigError, match=rf"eval-val-1x1\.json .* is damaged: .*{said}"):
        write_report(run / "r.html", [run])
    assert not (run / "r.html").exists()


def test_an_evaluation_without_its_headline_is_damaged(tmp_path, pack):
    run = write_retrieval(tmp_path / "run", pack, ranks=(1, 1, 1, 1))
    file = run / "eval-val-1x1.json"
    held = json.loads(file.read_text())
    del held["t2v_r1"]
    file.write_text(json.dumps(held))
    with pytest.raises(ConfigError, match=r"eval-val-1x1\.json .* is damaged: .*t2v_r1"):
        write_report(tmp_path / "r.html", [run])
