"""A report shows what run folders hold, alone on any screen, and trusts none of their strings."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from folders import CAPTION, HOSTILE, write_run
from pages import Page, read

from matinee.errors import ConfigError
from matinee.measure.draw.plots import line_plot
from matinee.measure.report.examples import Candidate, choose
from matinee.measure.report.rundata import AXES, comparable, curve, read_runs, span_seconds
from matinee.measure.report.write import write_report

pytest.importorskip("matplotlib")

SECTIONS = ("summary", "curves", "confusion", "examples", "time", "configuration")


@pytest.fixture
def runs(tmp_path, pack):
    return [
        write_run(tmp_path / "first", pack, evaluated=True),
        write_run(tmp_path / "second & last", pack, evaluated=True),
    ]


def test_page_is_well_formed_and_has_every_section_and_run(tmp_path, runs):
    page = read(write_report(tmp_path / "r.html", runs, title="A & B", intro="One.\n\nTwo."))
    assert set(SECTIONS) <= page.ids
    assert sum(tag == "h1" for tag, _ in page.tags) == 1
    assert {"A & B", "One.", "Two.", "first", "second & last", "75.0 %"} <= set(page.texts)
    assert {run["name"] for run in page.data["runs"]} == {"first", "second & last"}
    assert page.data["runs"][0]["scores"]["confusion"] == [[2, 0], [1, 1]]
    # loss, top-1 of validation and of batches, learning rate over four axes each; two confusion
    # matrices, class bars, time
    plots = [held for tag, held in page.tags if tag == "svg" and held.get("role") == "img"]
    assert len(plots) == 4 * 4 + 4
    assert all(len(held["aria-label"]) > 20 for held in plots)


def test_page_loads_nothing_and_runs_nothing(tmp_path, runs):
    page = read(write_report(tmp_path / "r.html", runs))
    for tag, held in page.tags:
        for name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
            assert held.get(name, "#").startswith(("#", "data:image/")), (tag, held)
        assert not any(name.startswith("on") for name in held), (tag, held)
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert "url(" not in re.sub(r"url\(#", "", held.get("style") or "")
    assert [h["type"] for tag, h in page.tags if tag == "script"] == ["application/json"]
    source = (tmp_path / "r.html").read_text(encoding="utf-8")
    style = source[source.index("<style>") : source.index("</style>")]
    assert "@import" not in style
    assert "url(" not in style


def test_every_reference_inside_the_page_has_its_target(tmp_path, runs):
    source = write_report(tmp_path / "r.html", runs).read_text(encoding="utf-8")
    used = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', source)
    assert len(used) > 20
    assert {name for pair in used for name in pair if name} <= Page(source).ids


def test_hostile_labels_and_captions_stay_text(tmp_path, runs):
    path = write_report(tmp_path / "r.html", runs, title=CAPTION, intro=CAPTION)
    page, source = read(path), path.read_text(encoding="utf-8")
    assert source.count("<script") == source.count("</script") == 1
    assert '<img src="http' not in source
    assert HOSTILE in page.texts
    assert f"“{CAPTION}”" in page.text
    assert page.data["title"] == CAPTION
    assert page.data["examples"][0]["texts"] == [CAPTION]
    assert "jump $5_$6" in page.texts  # not read as a formula


def test_same_runs_give_the_same_bytes(tmp_path, runs):
    first = write_report(tmp_path / "a.html", runs).read_bytes()
    assert write_report(tmp_path / "sub" / "b.html", runs).read_bytes() == first


def test_examples_show_frames_and_mark_right_and_wrong_in_words(tmp_path, runs):
    page = read(write_report(tmp_path / "r.html", runs, examples=4))
    images = [held for tag, held in page.tags if tag == "img"]
    assert len(images) == 4 * 8
    assert {(h["width"], h["height"]) for h in images} == {("128", "96")}
    assert all(h["src"].startswith("data:image/jpeg;base64,") and h["alt"] for h in images)
    assert page.texts.count("✗ wrong") == 2  # one sample, by both runs
    assert page.texts.count("✓ right") == 6
    assert "62.5 %" in page.text


def test_run_without_evaluation_uses_its_last_validation(tmp_path, pack):
    run = write_run(tmp_path / "plain", pack, evaluated=False)
    page = read(write_report(tmp_path / "r.html", [run]))
    assert set(SECTIONS) <= page.ids
    assert page.data["runs"][0]["scores"]["confusion"] == [[2, 0], [1, 1]]
    assert "validation during training, epoch 2" in page.texts
    assert any(tag == "img" for tag, _ in page.tags)
    assert "✓ right" not in page.texts
    assert "without predictions" in page.text


def test_page_is_written_although_the_pack_is_gone(tmp_path, pack):
    moved = tmp_path / "moved.pack"
    shutil.copytree(pack, moved)
    run = write_run(tmp_path / "run", moved, evaluated=True)
    shutil.rmtree(moved)
    page = read(write_report(tmp_path / "r.html", [run]))
    assert "75.0 %" in page.texts
    assert "is no pack" in page.text
    assert not any(tag == "img" for tag, _ in page.tags)


def test_run_that_has_just_begun_makes_a_page(tmp_path, pack):
    run = write_run(tmp_path / "new", pack, evaluated=False)
    (run / "metrics.jsonl").unlink()
    page = read(write_report(tmp_path / "r.html", [run]))
    assert set(SECTIONS) <= page.ids
    assert {"No run was validated.", "No times were recorded."} <= set(page.texts)


def test_seconds_add_up_to_the_logged_time(tmp_path, pack):
    """160 clips at 10 clips/s are 16 s; validation comes on top."""
    run = read_runs([write_run(tmp_path / "run", pack, evaluated=False)])[0]
    seconds = span_seconds(run)
    assert list(seconds) == ["data_wait", "forward", "backward", "optimizer", "validate", "other"]
    assert seconds["other"] == pytest.approx(1.0)
    assert sum(seconds.values()) == pytest.approx(16 + 1.5)
    page = read(write_report(tmp_path / "r.html", [run.path]))
    assert "the time of 1 of 2 validations was not logged" in page.text


def test_different_views_are_called_incomparable(tmp_path, runs):
    assert comparable(read_runs(runs))
    file = runs[1] / "eval-val-1x1.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"views": "3x1"}))
    assert not comparable(read_runs(runs))
    assert "not directly comparable" in read(write_report(tmp_path / "r.html", runs)).text


def test_own_validation_split_and_newest_step_count(tmp_path, pack):
    run = write_run(tmp_path / "run", pack, evaluated=True)
    report = json.loads((run / "eval-val-1x1.json").read_text())
    for name, change in (
        ("train-1x1", {"split": "train", "top1": 1.0}),
        ("old-1x1", {"step": 10, "top1": 0.1}),
        ("val-3x1", {"views": "3x1", "top1": 0.8}),
    ):
        (run / f"eval-{name}.json").write_text(json.dumps(report | change))
    scores = read_runs([run])[0].scores
    assert scores is not None
    assert (scores.source, scores.metrics["top1"]) == ("eval-val-3x1.json", 0.8)


def test_runs_of_one_name_are_told_apart(tmp_path, pack):
    for parent in ("a", "b"):
        (tmp_path / parent).mkdir()
        write_run(tmp_path / parent / "run", pack, evaluated=False)
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "b" / "run"]
    assert [run.name for run in read_runs(paths)] == [
        str(paths[0]), str(paths[1]), f"{paths[1]} (2)"
    ]  # fmt: skip


def test_user_errors_say_what_is_wrong(tmp_path, runs):
    with pytest.raises(ConfigError, match="at least one run"):
        write_report(tmp_path / "r.html", [])
    with pytest.raises(ConfigError, match="no run"):
        write_report(tmp_path / "r.html", [tmp_path])
    (runs[0] / "eval-val-1x1.json").write_text('{"top1": 1')
    with pytest.raises(ConfigError, match=r"eval-val-1x1\.json is damaged"):
        write_report(tmp_path / "r.html", runs)
    assert not (tmp_path / "r.html").exists()


def test_many_classes_make_a_table_of_mistakes(tmp_path, pack):
    run = write_run(tmp_path / "run", pack, evaluated=False)
    names = [f"class {i}" for i in range(60)]
    confusion = np.eye(60, dtype=int) * 5
    confusion[7, 31] = 9
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    row |= {"per_class": dict.fromkeys(names, 1.0), "confusion": confusion.tolist()}
    row["samples"] = int(confusion.sum())
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row | {"step": 30, "epoch": 3}) + "\n")
    page = read(write_report(tmp_path / "r.html", [run]))
    assert "Most frequent mistakes of run" in page.texts
    at = page.texts.index("taken for")
    assert [t for t in page.texts[at:] if t.strip()][2:5] == ["class 7", "class 31", "9"]


def test_examples_take_classes_in_turn_and_mistakes_first():
    held = [Candidate(i, str(i), label, i % 5 == 4) for i, label in enumerate("aaaaabbbbbccccc")]
    chosen = choose(held, 6)
    assert [c.label for c in chosen] == list("abcabc")
    assert [c.sample for c in chosen] == ["4", "5", "14", "0", "9", "10"]
    assert len(choose(held, 99)) == 15
    assert choose(held, 0) == []
    assert [c.label for c in choose(held, 2)] == ["a", "c"]


def test_long_curves_are_averaged_to_few_points(runs):
    run = read_runs(runs[:1])[0]
    rows = [{"epoch": i / 100, "loss": float(i % 2)} for i in range(10_000)]
    points = curve(run, rows, "loss")
    assert points.shape == (2, 400)
    assert np.allclose(points[1], 0.5, atol=0.03)
    assert curve(run, [{"epoch": 1, "lr": 0.1}], "loss").shape == (2, 0)


def test_curves_lie_over_steps_clips_and_hours_of_recorded_time(runs):
    """Each epoch is 80 clips at 10 a second; the second row also holds 1.5 s of validation."""
    run = read_runs(runs[:1])[0]
    assert curve(run, run.train, "loss", "step").tolist() == [[10, 20], [2.0, 1.0]]
    assert curve(run, run.train, "loss", "clips").tolist() == [[80, 160], [2.0, 1.0]]
    hours = curve(run, run.train, "loss", "hours")[0]
    assert hours * 3600 == pytest.approx([8.0, 17.5])
    assert hours[-1] * 3600 == pytest.approx(sum(span_seconds(run).values()))


def test_a_validation_lies_behind_the_training_that_it_is_of(runs):
    run = read_runs(runs[:1])[0]
    val = tuple({**row, "spans": {"validate": 2.0}} for row in run.val)
    run = replace(run, val=val)
    assert curve(run, run.val, "top1", "clips")[0].tolist() == [80, 160]
    # 8 s, its own 2 s; then 8 s, the 1.5 s that the training row holds, and 2 s more
    assert curve(run, run.val, "top1", "hours")[0] * 3600 == pytest.approx([10.0, 21.5])
    assert curve(run, run.train, "loss", "hours")[0] * 3600 == pytest.approx([8.0, 19.5])


def test_a_run_without_rows_has_empty_curves_over_every_axis(runs):
    run = replace(read_runs(runs[:1])[0], train=(), val=())
    assert all(curve(run, run.train, "loss", axis).shape == (2, 0) for axis in AXES)


def test_runs_are_compared_over_one_axis_at_a_time(tmp_path, runs):
    page = read(write_report(tmp_path / "r.html", runs))
    buttons = [held for tag, held in page.tags if tag == "input"]
    assert [held["type"] for held in buttons] == ["radio"] * 4
    assert ["checked" in held for held in buttons] == [True, False, False, False]
    shown = [held["class"] for tag, held in page.tags if "over" in held.get("class", "").split()]
    assert shown == [f"over over-{i}" for _ in range(4) for i in range(4)]
    told = page.data["runs"][0]["curves"]["loss"]
    assert (told["step"], told["clips"], told["value"]) == ([10, 20], [80, 160], [2.0, 1.0])
    alone = read(write_report(tmp_path / "one.html", runs[:1]))
    assert not any(tag == "input" for tag, _ in alone.tags)


def test_a_comparison_tells_only_what_differs(tmp_path, runs):
    config = json.loads((runs[1] / "config.json").read_text())
    config["optim"]["lr"] = 0.5
    (runs[1] / "config.json").write_text(json.dumps(config))
    (runs[1] / "environment.json").write_text(json.dumps({"torch": "9", "command": ["other"]}))
    page = read(write_report(tmp_path / "r.html", runs))
    assert "differences" in page.ids
    texts = [text for text in page.texts if text.strip()]
    at = texts.index("optim.lr")
    assert texts[at + 2] == "0.5"
    assert "optim.momentum" not in texts
    at = texts.index("torch")
    assert texts[at + 1 : at + 3] == ['"2"', '"9"']
    assert "command" not in texts
    assert "differences" not in read(write_report(tmp_path / "one.html", runs[:1])).ids


def test_drawing_leaves_matplotlib_as_it_was():
    import matplotlib

    before = dict(matplotlib.rcParams)
    svg = line_plot("x", [np.array([[1.0, 2.0], [3.0, 1.0]])], about="falls")
    assert dict(matplotlib.rcParams) == before
    assert "var(--run0)" in svg
    assert "#0a0b" not in svg
    assert "<metadata" not in svg
