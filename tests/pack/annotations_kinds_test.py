"""Each kind of annotation file, written here to its public format: what a sample becomes."""

from __future__ import annotations

import json
import pickle
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from matinee.errors import AnnotationError, ConfigError
from matinee.media.source import FrameFolder
from matinee.pack.annotations import Annotations, Sample
from matinee.pack.annotations.finder import VideoFinder
from matinee.pack.annotations.registry import KINDS, describe_kinds, read_annotations


@pytest.fixture
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


def read(spec: str, **options) -> Annotations:
    return read_annotations(spec, VideoFinder(Path("v")), **options)


KINETICS = "label,youtube_id,time_start,time_end,split"


def test_kinetics_finds_clips_under_the_names_that_are_common(here):
    """With times or without, with or without underscores in the class folder, any ending."""
    touch(
        "riding a bike/-aaa_000010_000020.mp4", "riding_a_bike/bbb.webm",
        "val/yoga/ccc_000007_000017.mkv",
    )  # fmt: skip
    write("train.csv", KINETICS, "riding a bike,-aaa,10,20,train", "riding a bike,bbb,1,11,train")
    write("val.csv", KINETICS, "yoga,ccc,7,17,validate")
    assert read("kinetics:train.csv,val.csv").samples == [
        Sample(name, name, label=label, split=split)
        for name, label, split in [
            ("riding a bike/-aaa_000010_000020.mp4", "riding a bike", "train"),
            ("riding_a_bike/bbb.webm", "riding a bike", "train"),
            ("val/yoga/ccc_000007_000017.mkv", "yoga", "val"),
        ]
    ]


def test_the_class_folder_decides_between_two_clips_of_a_name(here):
    """One YouTube video in two classes; without the folders it is an error that names both."""
    touch("eating_a_cake/aaa.mp4", "yoga/aaa.mp4", "x/bbb.mp4", "y/bbb.mp4")
    write("train.csv", KINETICS, "yoga,aaa,1,11,train", "eating (a) cake,aaa,1,11,train")
    assert [s.video for s in read("kinetics:train.csv").samples] == [
        "yoga/aaa.mp4",
        "eating_a_cake/aaa.mp4",
    ]
    write("train.csv", KINETICS, "yoga,bbb,1,11,train")
    with pytest.raises(AnnotationError, match=r"x/bbb.mp4 or y/bbb.mp4"):
        read("kinetics:train.csv")


def test_kinetics_of_whole_videos_keeps_the_times(here):
    """Two clips of one video; as clips that were cut they are refused, with what to take."""
    touch("aaa.mp4")
    write("train.csv", KINETICS, "yoga,aaa,1,11,train", "yoga,aaa,20.5,30,train")
    assert [(s.id, s.start, s.end) for s in read("kinetics-whole:train.csv").samples] == [
        ("aaa.mp4#0", 1.0, 11.0),
        ("aaa.mp4#1", 20.5, 30.0),
    ]
    with pytest.raises(AnnotationError, match="take --annotations kinetics-whole"):
        read("kinetics:train.csv")


def test_something_something_classes_are_templates_without_brackets(here):
    """The sentence is the text; the class's number comes from labels.json; tests have no class."""
    touch("20bn/1.webm", "20bn/2.webm", "20bn/3.webm")
    template = "Putting [something] next to [something]"
    write("labels.json", json.dumps({"Putting something next to something": "7", "Other": "0"}))
    entry = {"label": "putting a cup next to a pen", "template": template, "placeholders": []}
    write("train.json", json.dumps([{"id": "1", **entry}]))
    write("validation.json", json.dumps([{"id": 2, **entry}]))
    write("test.json", json.dumps([{"id": "3"}]))
    found = read("something:labels.json,train.json,validation.json,test.json").samples
    one = "Putting something next to something"
    extra = (("class_id", "7"),)
    assert found == [
        Sample("20bn/1.webm", "20bn/1.webm", one, "train", text=entry["label"], extra=extra),
        Sample("20bn/2.webm", "20bn/2.webm", one, "val", text=entry["label"], extra=extra),
        Sample("20bn/3.webm", "20bn/3.webm", None, "test"),
    ]
    write("train.json", json.dumps([{"id": "1", **entry, "template": "Eating [something]"}]))
    with pytest.raises(AnnotationError, match="entry 1: the class 'Eating something' is not in"):
        read("something:labels.json,train.json")


def test_ucf101_lists_give_class_and_split(here):
    """Files may be of another ending, in folders above, or flat; numbers are compared."""
    touch("all/yoyo/v_YoYo_g01_c01.mp4", "v_Archery_g02_c01.mkv")
    write("classInd.txt", "1 Archery", "2 YoYo")
    write("trainlist01.txt", "YoYo/v_YoYo_g01_c01.avi 2")
    write("testlist01.txt", "Archery/v_Archery_g02_c01.avi")
    found = read("ucf101:classInd.txt,trainlist01.txt,testlist01.txt").samples
    assert [(s.video, s.label, s.split) for s in found] == [
        ("all/yoyo/v_YoYo_g01_c01.mp4", "YoYo", "train"),
        ("v_Archery_g02_c01.mkv", "Archery", "test"),
    ]
    write("trainlist01.txt", "YoYo/v_YoYo_g01_c01.avi 1")
    with pytest.raises(AnnotationError, match=r"line 1: the class 'YoYo' is number 2 .* 1 here"):
        read("ucf101:classInd.txt,trainlist01.txt")
    write("testlist02.txt", "YoYo/v_YoYo_g01_c01.avi")
    with pytest.raises(AnnotationError, match="in another list too"):
        read("ucf101:trainlist01.txt,testlist02.txt")


def test_hmdb51_lists_leave_out_what_is_in_neither_part(here):
    """1 trains, 2 tests, 0 is left out; the class is the list's; one split at a time."""
    touch("clap/a#b (1)_x.avi", "clap/b.avi", "brush_hair/c.avi", "clap/d.avi")
    write("s/clap_test_split1.txt", "a#b (1)_x.avi 1 ", "b.avi 2 ", "d.avi 0 ")
    write("s/brush_hair_test_split1.txt", "c.avi 1 ")
    write("s/clap_test_split2.txt", "b.avi 1 ")
    found = read("hmdb51:s/*_test_split1.txt")
    assert [(s.video, s.label, s.split) for s in found.samples] == [
        ("brush_hair/c.avi", "brush_hair", "train"),
        ("clap/a#b (1)_x.avi", "clap", "train"),
        ("clap/b.avi", "clap", "test"),
    ]
    with pytest.raises(AnnotationError, match="splits 1 and 2 are given"):
        read("hmdb51:s/clap_*.txt")


def test_lists_of_frame_folders_give_the_first_frames_at_a_stated_rate(here):
    """Paths with spaces; classes by name or number; the rate is said, or given."""
    touch("some one/img_00001.jpg", "b/000001.png")
    write("train_videofolder.txt", "some one 45 1")
    write("val_videofolder.txt", "b 30 0")
    write("category.txt", "Approaching something", "Yoga")
    found = read("tsm:category.txt,train_videofolder.txt,val_videofolder.txt")
    assert found.samples == [
        Sample("some one", "some one", "Yoga", "train", end=1.5),
        Sample("b", "b", "Approaching something", "val", end=1.0),
    ]
    assert found.videos[0].path == FrameFolder(Path("v/some one"), Fraction(30))
    assert "30 frames a second are assumed" in found.notes[0]
    fast = read("tsm:train_videofolder.txt,val_videofolder.txt", frames_fps=Fraction(12))
    assert [(s.label, s.end) for s in fast.samples] == [("1", 3.75), ("0", 2.5)]
    assert not fast.notes
    write("train_videofolder.txt", "some one 45 2")
    with pytest.raises(AnnotationError, match="line 1: class 2, but there are 2"):
        read("tsm:category.txt,train_videofolder.txt")


def test_msrvtt_captions_are_lines_of_one_text(here):
    """Several sentences a video, one of several lines; splits by name; category travels along."""
    touch("all/video0.mp4", "all/video1.avi")
    videos = [
        {"video_id": "video0", "category": 9, "split": "train", "start time": 1.0, "id": 0},
        {"video_id": "video1", "category": 3, "split": "validate", "url": "u", "id": 1},
    ]
    said = [("video1", "a cat"), ("video0", "a man\nruns"), ("video0", "he runs")]
    sentences = [{"sen_id": n, "video_id": v, "caption": c} for n, (v, c) in enumerate(said)]
    write("info.json", json.dumps({"info": {}, "videos": videos, "sentences": sentences}))
    assert read("captions:info.json").samples == [
        Sample("all/video0.mp4", "all/video0.mp4", split="train", text="a man runs\nhe runs",
               extra=(("category", "9"),)),
        Sample("all/video1.avi", "all/video1.avi", split="val", text="a cat",
               extra=(("category", "3"),)),
    ]  # fmt: skip
    sentences.append({"video_id": "video2", "caption": "x"})
    write("info.json", json.dumps({"videos": videos, "sentences": sentences}))
    with pytest.raises(AnnotationError, match="sentence 4: there is no video 'video2'"):
        read("captions:info.json")
    write("info.json", json.dumps({"videos": videos, "sentences": sentences[1:3]}))
    with pytest.raises(AnnotationError, match="'video1' has no caption"):
        read("captions:info.json")


def test_lists_of_video_and_caption_are_read(here):
    """As retrieval code keeps them: a file a split, captions one or several."""
    touch("video0.mp4", "video7.mp4")
    write("msrvtt_train.json", json.dumps([
        {"video": "video0.mp4", "caption": ["a", "b"]}, {"video": "video0.mp4", "caption": "c"},
    ]))  # fmt: skip
    write("msrvtt_test.json", json.dumps([{"video": "video7.mp4", "caption": "d"}]))
    found = read("captions:msrvtt_train.json,msrvtt_test.json").samples
    assert [(s.video, s.split, s.text) for s in found] == [
        ("video0.mp4", "train", "a\nb\nc"),
        ("video7.mp4", "test", "d"),
    ]


def dump(name: str, rows, protocol: int = 4) -> None:
    Path(name).write_bytes(pickle.dumps(rows, protocol))


@pytest.mark.parametrize("protocol", range(6))
def test_narrations_are_spans_with_one_text_or_several(here, protocol):
    """Numbers of numpy too; a list of texts becomes lines; ids count within a video."""
    touch("a-1.mp4", "deep/b.mp4")
    rows = [
        ("a-1", 1.5, 2, "#C C opens"), ("b", np.float64(0), np.int64(3), ["x\ny", "z", ""]),
        ["a-1", 3.0, 4.0, np.array(["p", "q"])],
    ]  # fmt: skip
    dump("ego4d_train.pkl", rows, protocol)
    dump("ego4d_val.pkl", [("b.mp4", 5.0, 6.0, "later")], protocol)
    found = read("narrations:ego4d_train.pkl,ego4d_val.pkl")
    assert found.samples == [
        Sample("a-1.mp4#0", "a-1.mp4", None, "train", 1.5, 2.0, "#C C opens"),
        Sample("deep/b.mp4#0", "deep/b.mp4", None, "train", 0.0, 3.0, "x y\nz"),
        Sample("a-1.mp4#1", "a-1.mp4", None, "train", 3.0, 4.0, "p\nq"),
        Sample("deep/b.mp4#1", "deep/b.mp4", None, "val", 5.0, 6.0, "later"),
    ]


def test_narrations_of_no_span_are_refused_one_by_one(here):
    """An end before its start, NaN; the rest is kept."""
    touch("a.mp4")
    rows = [("a", 2.0, 2.0, "x"), ("a", float("nan"), 3.0, "x"), ("a", 1.0, 2.0, "y")]
    dump("train.pkl", rows)
    found = read("narrations:train.pkl")
    assert [s.text for s in found.samples] == ["y"]
    assert [what for what, _ in found.refused] == [
        "a.mp4 (sample in row 1 of train.pkl)",
        "a.mp4 (sample in row 2 of train.pkl)",
    ]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"a": 1}, "holds a dict"),
        ([("a", 1.0, 2.0)], "row 1"),
        ([("a", 1.0, 2.0, "x"), "abcd"], "row 2"),
        ([("a", "1", 2.0, "x")], "row 1: times"),
        ([("a", True, 2.0, "x")], "row 1: times"),
        ([("a", 1.0, 2.0, {"x": 1})], "dict in place of a text"),
        ([("a", 1.0, 2.0, [["x"]])], "list in place of a text"),
        ([(b"\xff", 1.0, 2.0, "x")], "not UTF-8"),
        ([("", 1.0, 2.0, "x")], "path is blank"),
        ([], "no narrations"),
    ],
)
def test_narrations_of_another_layout_are_refused_with_their_row(here, rows, words):
    touch("a.mp4")
    dump("train.pkl", rows)
    with pytest.raises(AnnotationError, match=words):
        read("narrations:train.pkl")


@pytest.mark.parametrize("many", [["x" * 1000] * 1000, "x" * 200_000], ids=["list", "text"])
def test_texts_shared_within_a_pickle_do_not_unfold_without_bound(here, many):
    """A list of 1,000 long texts, or one long text, that 600 rows refer to."""
    touch("a.mp4")
    dump("train.pkl", [("a", n, n + 1.0, many) for n in range(600)])
    with pytest.raises(AnnotationError, match="unfolds into more"):
        read("narrations:train.pkl")


def test_missing_videos_are_counted_and_all_missing_is_an_error(here):
    """Some: they stay, at the place where they were looked for. All: the first is named."""
    touch("a.mp4")
    write("l.csv", "path,label,split", *(f"{n}.mp4,x,train" for n in "abc"))
    found = read("table:l.csv")
    assert [v.id for v in found.videos] == ["a.mp4", "b.mp4", "c.mp4"]
    assert "2 of 3 videos are not below v" in found.notes[-1] and "v/b.mp4" in found.notes[-1]
    Path("v/a.mp4").unlink()
    with pytest.raises(AnnotationError, match=r"not one of the 3 videos .* first would be v/a.mp4"):
        read("table:l.csv")
    write("train.csv", KINETICS, "yoga,zzz,1,11,train")
    with pytest.raises(AnnotationError, match=r"would be v/zzz_000001_000011.mp4"):
        read("kinetics:train.csv")


def test_a_loop_of_links_ends(here):
    """A folder that links to one above it is walked once."""
    touch("k/aaa.mp4")
    Path("v/k/again").symlink_to(Path("v").absolute())
    write("train.csv", KINETICS, "yoga,aaa,1,11,train")
    assert [v.id for v in read("kinetics:train.csv").videos] == ["k/aaa.mp4"]


EXAMPLES = {
    "table": ("l.csv", ["path,label", "a.mp4,x"]),
    "kinetics": ("train.csv", [KINETICS, "yoga,a,1,11,train"]),
    "something": ("train.json", ['[{"id": "1", "label": "x", "template": "[x]"}]']),
    "ucf101": ("trainlist01.txt", ["Yo/v_Yo_g01.avi 1", "Yo/v_Yo_g02.avi 1"]),
    "hmdb51": ("clap_test_split1.txt", ["a.avi 1", "b.avi 0"]),
    "tsm": ("train_videofolder.txt", ["a 30 1"]),
    "epic100": ("EPIC_100_train.csv", ["narration_id,participant_id,video_id", "1,2,3"]),
    "captions": ("c.json", ['[{"video": "a.mp4", "caption": "x"}]']),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_file_of_another_kind_is_told_by_its_content(here, name):
    """Whichever kind is asked for, the error names the kind that the file is of."""
    file, lines = EXAMPLES[name]
    write(file, *lines)
    for asked, kind in KINDS.items():
        if kind.looks != name:
            with pytest.raises(AnnotationError, match=f"looks like {name}.*{name}:{file}"):
                read(f"{asked}:{file}")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("lavila:x", "no kind 'lavila'; there are table, kinetics"),
        ("table", "table needs files, e.g. --annotations table:labels.csv"),
        ("table:", "needs files"),
        ("table:none.csv", "none.csv: no such file"),
        ("table:v", "v: is a folder"),
        ("table:*.nothing", "no file is called like that"),
        ("webdataset:{5..2}.tar", "counts to nothing"),
        ("webdataset:{000..002}.tar", "000.tar: no such file"),
    ],
)
def test_what_is_wrong_with_the_request_is_said(here, spec, words):
    with pytest.raises((ConfigError, AnnotationError), match=words.replace("{", r"\{")):
        read(spec)


def test_every_kind_is_described_with_an_example():
    """Its name, one line, and how it is asked for."""
    said = describe_kinds()
    for name, kind in KINDS.items():
        assert f"  {name} " in said and kind.what in said and f"e.g. {kind.example}" in said
        assert kind.example.strip("'").startswith(f"{name}:")
