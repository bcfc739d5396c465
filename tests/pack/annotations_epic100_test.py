"""EPIC-KITCHENS-100: the published files, read again here column by column."""

from __future__ import annotations

import ast
import csv
import shutil
from pathlib import Path

import pytest

from matinee.errors import AnnotationError
from matinee.evaluation.epic100_csv import read_clips
from matinee.pack.annotations.finder import VideoFinder
from matinee.pack.annotations.registry import read_annotations


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as text:
        return list(csv.DictReader(text))


@pytest.fixture
def held(real_data) -> set[str]:
    """Ids of all videos of the data set, as a pack would have them: `P01/videos/P01_11.MP4`."""
    videos = rows_of(real_data / "epic100" / "EPIC_100_video_info.csv")
    return {f"{v['video_id'][:3]}/videos/{v['video_id']}.MP4" for v in videos}


def test_actions_have_class_keys_and_times(real_data, held):
    """9,668 rows; verb and noun are keys of the classes, not words; seconds from the timestamps."""
    folder = real_data / "epic100"
    finder = VideoFinder(folder, held)
    found = read_annotations(f"epic100:{folder}/EPIC_100_validation.csv", finder)
    keys = {
        what: {int(r["id"]): r["key"] for r in rows_of(folder / f"EPIC_100_{what}_classes.csv")}
        for what in ("verb", "noun")
    }
    rows = rows_of(folder / "EPIC_100_validation.csv")
    assert len(found.samples) == len(rows) == 9668
    for sample, row in zip(found.samples, rows, strict=True):
        verb, noun = keys["verb"][int(row["verb_class"])], keys["noun"][int(row["noun_class"])]
        assert dict(sample.extra) == {
            "verb": verb, "noun": noun, "participant_id": row["participant_id"],
        }  # fmt: skip
        assert (sample.id, sample.label) == (row["narration_id"], f"{verb} {noun}")
        assert (sample.text, sample.split) == (row["narration"], "val")
        assert sample.video == f"{row['participant_id']}/videos/{row['video_id']}.MP4"
        for time, name in ((sample.start, "start_timestamp"), (sample.end, "stop_timestamp")):
            hours, minutes, rest = row[name].split(":")
            assert time == pytest.approx(3600 * int(hours) + 60 * int(minutes) + float(rest))
    assert any(row["verb"] != keys["verb"][int(row["verb_class"])] for row in rows)


def test_retrieval_keeps_every_noun(real_data, held):
    """As many verbs and nouns, of the same names, as the evaluation reads from the same file."""
    folder = real_data / "epic100"
    file = folder / "EPIC_100_retrieval_test.csv"
    found = read_annotations(f"epic100-mir:{file}", VideoFinder(folder, held))
    names = {int(r["id"]): r["key"] for r in rows_of(folder / "EPIC_100_noun_classes.csv")}
    clips = read_clips(file)
    assert clips.ids == tuple(sample.id for sample in found.samples)
    several = 0
    for sample, nouns in zip(found.samples, clips.nouns, strict=True):
        cell = dict(sample.extra)["noun"].split("|")
        assert set(cell) == {names[number] for number in nouns} and len(set(cell)) == len(cell)
        assert sample.label is None and sample.split == "test"
        several += len(cell) > 1
    listed = [ast.literal_eval(row["all_noun_classes"]) for row in rows_of(file)]
    assert several == sum(len(set(numbers)) > 1 for numbers in listed) > 1000


HEAD = (
    "narration_id,participant_id,video_id,start_timestamp,stop_timestamp,narration,verb_class,"
    "noun_class,all_noun_classes"
)
ROW = 'P01_01_0,P01,P01_01,00:00:01.50,00:01:02.25,take the plate,0,1,"[1, 0]"'


@pytest.fixture
def small(tmp_path) -> Path:
    (tmp_path / "EPIC_100_verb_classes.csv").write_text("id,key\n0,take\n1,put\n")
    (tmp_path / "EPIC_100_noun_classes.csv").write_text("id,key\n0,tap\n1,plate\n")
    (tmp_path / "P01_01.MP4").write_bytes(b"x")
    return tmp_path


def read(small: Path, *rows: str, kind: str = "epic100", name: str = "EPIC_100_train.csv"):
    (small / name).write_text("\n".join([HEAD, *rows]) + "\n")
    return read_annotations(f"{kind}:{small / name}", VideoFinder(small))


def test_files_of_the_test_split_have_no_classes(small):
    """Published without labels: times and videos only. No files of classes are asked for."""
    (small / "EPIC_100_verb_classes.csv").unlink()
    (small / "EPIC_100_noun_classes.csv").unlink()
    (small / "EPIC_100_test_timestamps.csv").write_text(
        "narration_id,participant_id,video_id,start_timestamp,stop_timestamp\n"
        "P01_01_0,P01,P01_01,00:00:01.00,00:00:02.00\n"
    )
    spec = f"epic100:{small}/EPIC_100_test_timestamps.csv"
    (sample,) = read_annotations(spec, VideoFinder(small)).samples
    assert (sample.label, sample.text, sample.split) == (None, None, "test")
    assert (sample.start, sample.end) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ROW.replace(",0,1,", ",7,1,"), "line 2: there is no verb class 7"),
        (ROW.replace(",0,1,", ",0,x,"), "noun_class 'x' is not a number"),
        (ROW.replace("00:01:02.25", "00:00:01.50"), "line 2: end 1.5 s does not lie after"),
        (ROW.replace("00:01:02.25", "soon"), "line 2: stop_timestamp 'soon'"),
        (f"{ROW}\n{ROW}", "two samples have the id 'P01_01_0'"),
        (ROW.replace("[1, 0]", "[1, __import__('os')]"), None),
    ],
)
def test_mistakes_are_told_with_their_line(small, row, words):
    """A list is a list of numbers, or refused where it is needed: nothing is evaluated."""
    if words is None:
        assert len(read(small, row).samples) == 1
        with pytest.raises(AnnotationError, match="is not a list such as"):
            read(small, row, kind="epic100-mir")
    else:
        with pytest.raises(AnnotationError, match=words):
            read(small, row)


def test_classes_come_from_beside_or_are_asked_for(small, tmp_path):
    """Numbers alone would name nothing."""
    read(small, ROW)
    away = tmp_path / "away"
    away.mkdir()
    shutil.move(small / "EPIC_100_verb_classes.csv", away)
    with pytest.raises(AnnotationError, match=r"EPIC_100_verb_classes.csv is needed, beside it"):
        read(small, ROW)
    given = f"epic100:{small}/EPIC_100_train.csv,{away}/EPIC_100_verb_classes.csv"
    (sample,) = read_annotations(given, VideoFinder(small)).samples
    assert sample.label == "take plate"
