"""Annotation files that leave a doubt: no label goes to another video, no sample gets lost unsaid,
and what strangers wrote is refused in one line.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from matinee.errors import AnnotationError
from matinee.pack.annotations import Annotations, Sample
from matinee.pack.annotations.finder import VideoFinder
from matinee.pack.annotations.registry import read_annotations


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the current one, beside an empty folder `v` for videos."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v").mkdir()
    return tmp_path


def touch(*names: str) -> None:
    for name in names:
        path = Path("v", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def write(name: str, *lines: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def read(spec: str) -> Annotations:
    return read_annotations(spec, VideoFinder(Path("v")))


def splits(spec: str) -> list[str | None]:
    return [sample.split for sample in read(spec).samples]


def refusal(spec: str) -> str:
    """The one line that a file is refused with."""
    with pytest.raises(AnnotationError) as caught:
        read(spec)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 500
    return said


KINETICS = "label,youtube_id,time_start,time_end,split"
LISTS = {
    "captions": ("l.json", json.dumps([{"video": "b/1.mp4", "caption": "x"}])),
    "captions without an ending": ("l.json", json.dumps([{"video": "b/1", "caption": "x"}])),
    "ucf101": ("trainlist01.txt", "b/1.avi 2"),
    "hmdb51": ("b_test_split1.txt", "1.avi 1"),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_video_in_another_folder_than_the_stated_one_is_another_video(name):
    """Only a/1.mp4 is there, b/1 is named: missing. In the root, in b or in x/B it is found."""
    file, line = LISTS[name]
    write(file, line)
    kind = name.split()[0]
    touch("a/1.mp4")
    assert "not one of the 1 videos" in refusal(f"{kind}:{file}")
    for place in ("1.mkv", "b/1.mkv", "x/B/1.mkv"):
        touch(place)
        assert [s.video for s in read(f"{kind}:{file}").samples] == [place]
        Path("v", place).unlink()
    touch("a/b/x/1.mp4")
    assert "not one of the 1 videos" in refusal(f"{kind}:{file}")


def test_a_stated_split_folder_is_not_exchanged_for_another():
    """Equal class folders below train and test."""
    write("l.json", json.dumps([{"video": "train/b/1.mp4", "caption": "x"}]))
    touch("test/b/1.mp4")
    assert "would be v/train/b/1.mp4" in refusal("captions:l.json")
    touch("all/train/b/1.mp4")
    assert [s.video for s in read("captions:l.json").samples] == ["all/train/b/1.mp4"]


def test_kinetics_files_without_a_split_column_have_the_split_of_their_name():
    """A column, where it says something, counts more."""
    touch("a.mp4", "b.mp4")
    head = KINETICS.removesuffix(",split")
    write("train.csv", head, "yoga,a,1,11")
    write("val.csv", head, "yoga,b,1,11")
    assert splits("kinetics:train.csv,val.csv") == ["train", "val"]
    write("val.csv", KINETICS, "yoga,b,1,11,test")
    assert splits("kinetics:train.csv,val.csv") == ["train", "test"]
    write("val.csv", KINETICS, "yoga,b,1,11,")
    assert splits("kinetics:train.csv,val.csv") == ["train", "val"]


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (("train", "val"), ["train", "val"]),
        (("Training_set", "validation-2"), ["train", "val"]),
        (("testimony", "valerie"), ["train", "val"]),  # held out: they name no split
        (("train_val", "test_train"), ["train", "val"]),  # held out: they name two
    ],
)
def test_a_file_named_without_a_split_has_that_of_its_folder(folders, expected):
    """Whole words only: folders are called after people and things."""
    for folder, name in zip(folders, "abcde", strict=False):
        touch(f"{name}.mp4")
        write(f"{folder}/1.json", json.dumps([{"video": f"{name}.mp4", "caption": "x"}]))
    found = read(f"captions:{folders[0]}/1.json,{folders[1]}/1.json")
    said = not any("no splits given" in note for note in found.notes)
    assert said == (folders[0] in ("train", "Training_set"))
    if said:
        assert [s.split for s in found.samples] == expected
    write("train/test.json", json.dumps([{"video": "a.mp4", "caption": "x"}]))
    assert splits("captions:train/test.json") == ["test"]


ENTRY = {"label": "x", "template": "[x]"}
MIXED = {
    "ucf101": {"trainlist01.txt": "c/a.avi 1", "more.txt": "c/b.avi 1"},
    "tsm": {"train_videofolder.txt": "a 30 1", "more.txt": "b 30 1"},
    "something": {"train.json": json.dumps([{"id": "a", **ENTRY}]),
                  "more.json": json.dumps([{"id": "b", **ENTRY}])},
    "captions": {"train.json": json.dumps([{"video": "a.mp4", "caption": "x"}]),
                 "more.json": json.dumps([{"video": "b.mp4", "caption": "x"}])},
    "kinetics": {"more.csv": f"{KINETICS}\nyoga,a,1,11,train\nyoga,b,1,11,"},
}  # fmt: skip


@pytest.mark.parametrize("kind", MIXED)
def test_samples_without_a_split_beside_others_with_one_are_an_error(kind):
    """They would be used for nothing. The first of them is named."""
    touch("a.mp4", "b.mp4")
    for name, text in MIXED[kind].items():
        write(name, text)
    said = refusal(f"{kind}:{','.join(MIXED[kind])}")
    assert "'b" in said and "has no split" in said


def test_times_that_unfold_without_end_are_refused_by_their_type():
    """Forty doublings of a pair, and a hundred thousand nested ones: neither is ever printed."""
    touch("a.mp4")
    head = b"\x80\x02]((X\1\0\0\0a"
    for start in (b"K\1" + b"\x32\x86" * 40, b"K\1" + b"\x85" * 200_000):
        Path("train.pkl").write_bytes(head + start + b"K\2X\1\0\0\0tte.")
        said = refusal("narrations:train.pkl")
        assert "row 1" in said and "tuple" in said
    for start, shown in [("x" * 10_000, "'xxx"), (True, "bool"), (None, "NoneType")]:
        Path("train.pkl").write_bytes(pickle.dumps([("a", start, 2.0, "t")]))
        assert shown in refusal("narrations:train.pkl")


def test_of_very_many_narrations_of_no_span_the_first_are_listed_and_all_counted():
    """Ten thousand one by one; how many more there are in one line."""
    touch("a.mp4")
    rows = [("a", 2.0, 1.0, "x")] * 10_123 + [("a", 1.0, 2.0, "y")]
    Path("train.pkl").write_bytes(pickle.dumps(rows))
    found = read("narrations:train.pkl")
    assert [s.text for s in found.samples] == ["y"]
    assert len(found.refused) == 10_001
    assert found.refused[9_999][0] == "a.mp4 (sample in row 10000 of train.pkl)"
    assert found.refused[-1] == ("123 more samples", "span nothing, as those before")


def captions(**video: object) -> str:
    sentences = [{"video_id": "a", "caption": "x"}]
    return json.dumps({"videos": [{"video_id": "a", **video}], "sentences": sentences})


@pytest.mark.parametrize(
    ("spec", "text", "words"),
    [
        ("captions:c.json", captions(split=[1]), "video 1: the split is a list"),
        ("captions:c.json", captions(split={}), "video 1: the split is a dict"),
        ("captions:c.json", captions(split="dev"), "the split 'dev' is not known"),
        ("captions:c.json", captions(category=[[1]]), "video 1: the category is a list"),
        ("captions:c.json", captions(video_id=True), "video 1 has no 'video_id'"),
        ("something:train.json", json.dumps([{"id": []}]), "entry 1: the id is a list"),
        ("something:train.json", json.dumps([{"id": "a", "label": ["x"]}]), "label is a list"),
        ("something:train.json", json.dumps([{"id": "a", "template": 1.5}]), "template is a float"),
        ("tsm:train.txt", f"a {'9' * 5000} 0", "lists classes only"),
        ("tsm:train.txt", f"b 3 0\na {'9' * 400} 0", "line 2: expected"),
        ("tsm:train.txt", "b 3 0\na ٣ 0", "line 2: expected"),
        ("kinetics:t.csv", f"{KINETICS}\nx,a,1,1e308:1e308,train", "line 2: time_end"),
        ("kinetics:t.csv", f"{KINETICS}\nx,a,1,1_0,train", "line 2: time_end '1_0'"),
        ("kinetics:t.csv", f"{KINETICS}\nx,a,1,٣,train", "line 2: time_end"),
        ("hmdb51:c_test_split1.txt", "x" * 5000, "line 1: expected"),
    ],
)  # fmt: skip
def test_values_of_another_type_or_size_are_refused_in_one_line(spec, text, words):
    touch("a.mp4")
    write(spec.partition(":")[2], text)
    assert words in refusal(spec)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (['a.mp4,run,"train', "b.mp4,run,train"], "line 2: "),
        (["a.mp4,run,train", 'b.mp4,"run,train', 'c.mp4,run",train'], "line 4: the label holds"),
        (['a.mp4,run,"train', 'val"'], "line 3: the split holds"),
        (['a.mp4,"run" x,train'], "line 2: "),
    ],
)
def test_a_quote_that_is_not_closed_swallows_no_rows(lines, words):
    """At the end of the file it is an error; closed by chance, it leaves a line break."""
    touch("a.mp4")
    write("l.csv", "path,label,split", *lines)
    assert f"l.csv, {words}" in refusal("table:l.csv")


def test_a_file_that_can_be_read_as_asked_is_not_refused_for_its_looks():
    """A table whose first column is called as one of EPIC-KITCHENS; a hint only where it fails."""
    touch("a.mp4")
    write("l.csv", "narration_id,path,text,split", "n1,a.mp4,take the plate,train")
    extra = (("narration_id", "n1"),)
    assert read("table:l.csv").samples == [
        Sample("a.mp4", "a.mp4", split="train", text="take the plate", extra=extra)
    ]
    write("l.csv", "narration_id,path,text,split", "n1,a.mp4,,train")
    said = refusal("table:l.csv")
    assert "line 2: the label is blank" in said and "epic100:l.csv" in said
