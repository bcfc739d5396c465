"""Labels and splits: what is understood, and what is refused with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from matinee.errors import AnnotationError
from matinee.pack.annotations import Sample, hold_out, read_class_folders, read_table


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def table(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "labels.csv"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_class_folders_give_labels_and_the_last_videos_by_name_are_held_out(tmp_path):
    """Ten of a class: the last two are val; whole, sorted, ids relative with /."""
    touch(tmp_path, *(f"{c}/{n:02d}.mp4" for c in ("run", "walk") for n in range(10)))
    found = read_class_folders(tmp_path)
    assert [v.id for v in found.videos] == [
        f"{c}/{n:02d}.mp4" for c in ("run", "walk") for n in range(10)
    ]
    assert {s.label for s in found.samples} == {"run", "walk"}
    held = [s.id for s in found.samples if s.split == "val"]
    assert held == ["run/08.mp4", "run/09.mp4", "walk/08.mp4", "walk/09.mp4"]
    assert "4 of 20" in found.notes[0]


def test_split_folders_are_splits(tmp_path):
    """train / validation / test above the classes; nothing is held out."""
    touch(tmp_path, "Train/a/1.mp4", "Train/b/2.mp4", "validation/a/3.mp4", "test/b/4.mp4")
    found = read_class_folders(tmp_path)
    assert {s.id: (s.label, s.split) for s in found.samples} == {
        "Train/a/1.mp4": ("a", "train"),
        "Train/b/2.mp4": ("b", "train"),
        "validation/a/3.mp4": ("a", "val"),
        "test/b/4.mp4": ("b", "test"),
    }
    assert not found.notes


def test_a_split_name_among_other_folders_is_a_class(tmp_path):
    """`train` beside `plane` is a locomotive."""
    touch(tmp_path, "train/1.mp4", "plane/2.mp4")
    assert {s.label for s in read_class_folders(tmp_path).samples} == {"train", "plane"}


def test_files_that_claim_nothing_are_listed_beside(tmp_path):
    """Notes, hidden files, files outside any class; videos in subfolders count."""
    touch(tmp_path, "a/1.mp4", "a/deep/er/2.MKV", "a/notes.txt", "a/.hidden.mp4", "top.mp4", "R.md")
    touch(tmp_path, "b/3.mp4", ".git/x.mp4")
    found = read_class_folders(tmp_path)
    assert [v.id for v in found.videos] == ["a/1.mp4", "a/deep/er/2.MKV", "b/3.mp4"]
    beside = {Path(path).name: reason for path, reason in found.bystanders}
    assert beside == {
        "notes.txt": "not a video by its name",
        ".hidden.mp4": "a hidden file",
        "top.mp4": "not in a class folder",
        "R.md": "not a video by its name",
    }


def test_odd_names_are_candidates_with_safe_ids(tmp_path):
    """Spaces, quotes, umlauts, leading dashes, newlines; never absolute, never '..'."""
    names = ["a b/-x y.mp4", "a b/ä'\"ö.mp4", "a b/new\nline.mp4", "a b/..x.mp4.mp4"]
    touch(tmp_path, *names[:3])
    ids = [v.id for v in read_class_folders(tmp_path).videos]
    assert sorted(ids) == sorted(names[:3])
    assert not any(i.startswith("/") or ".." in Path(i).parts for i in ids)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "has no folders"),
        (["1.mp4"], "has no folders"),
        (["a/1.mp4", "b/notes.txt"], "'b' is empty"),
        (["train/a/1.mp4", "val/a/readme.md"], "'a' is empty"),
    ],
)
def test_folders_without_classes_or_videos_are_refused(tmp_path, names, words):
    """The message names the class."""
    touch(tmp_path, *names)
    with pytest.raises(AnnotationError, match=words):
        read_class_folders(tmp_path)


def test_an_empty_class_folder_and_a_missing_root_are_refused(tmp_path):
    touch(tmp_path, "a/1.mp4")
    (tmp_path / "b").mkdir()
    with pytest.raises(AnnotationError, match="'b' is empty"):
        read_class_folders(tmp_path)
    with pytest.raises(AnnotationError, match="no such folder"):
        read_class_folders(tmp_path / "none")


def test_a_link_to_another_class_s_video_gets_an_id_of_its_own(tmp_path):
    """Ids name videos and samples, so two files of a data set never share one."""
    touch(tmp_path, "a/1.mp4", "b/2.mp4")
    (tmp_path / "b" / "again.mp4").symlink_to(tmp_path / "a" / "1.mp4")
    found = read_class_folders(tmp_path)
    ids = [s.id for s in found.samples]
    assert len(set(ids)) == len(ids) == 3
    assert len({v.id for v in found.videos}) == len(found.videos)


def test_links_to_folders_are_followed_once_and_never_upwards(tmp_path):
    """A loop within a class, and a link to the whole, add nothing; a link elsewhere does."""
    touch(tmp_path, "all/c/1.mp4", "all/d/2.mp4", "away/3.mp4")
    for name, target in {"loop": ".", "up": "..", "x": "../../away", "y": "../../away"}.items():
        (tmp_path / "all" / "c" / name).symlink_to(target)
    found = read_class_folders(tmp_path / "all")
    assert [v.id for v in found.videos] == ["c/1.mp4", "c/x/3.mp4", "d/2.mp4"]
    touch(tmp_path, "split/train/c/1.mp4", "split/train/e/2.mp4", "split/val/d/3.mp4")
    (tmp_path / "split" / "train" / "c" / "up").symlink_to("..")
    (tmp_path / "split" / "val" / "d" / "top").symlink_to("../..")
    found = read_class_folders(tmp_path / "split")
    assert [v.id for v in found.videos] == ["train/c/1.mp4", "train/e/2.mp4", "val/d/3.mp4"]


def test_a_table_gives_samples_with_times_text_and_more_columns(tmp_path):
    """All known columns, times as seconds and hh:mm:ss, blanks as None, extras as strings."""
    path = table(
        tmp_path,
        "path,label,split,start,end,text,person",
        'v/a.mp4,run,train,1.5,2:03.5,"a man, running",7',
        "v/a.mp4,walk,val,1:00:01,,,8",
        "v/b.mp4,run,train,,,ünïcode,",
    )
    found = read_table(path, tmp_path)
    assert [v.id for v in found.videos] == ["v/a.mp4", "v/b.mp4"]
    a, b, c = found.samples
    assert (a.id, b.id, c.id) == ("v/a.mp4#0", "v/a.mp4#1", "v/b.mp4")
    assert (a.start, a.end, a.text) == (1.5, 123.5, "a man, running")
    assert (b.start, b.end, b.text) == (3601.0, None, None)
    assert (c.start, c.end, c.text, c.extra) == (None, None, "ünïcode", (("person", ""),))
    assert [s.split for s in found.samples] == ["train", "val", "train"]


def test_a_byte_order_mark_and_windows_lines_are_read(tmp_path):
    """As spreadsheets write them."""
    path = tmp_path / "labels.csv"
    path.write_bytes("\ufeffpath,label\r\na.mp4,run\r\n".encode())
    assert read_table(path, tmp_path).samples[0].label == "run"


def test_without_splits_the_last_videos_by_name_are_held_out(tmp_path):
    """Five videos of a class: one is val; a column of blanks counts as none."""
    rows = [f"{n}.mp4,run," for n in (3, 1, 4, 0, 2)]
    found = read_table(table(tmp_path, "path,label,split", *rows), tmp_path)
    assert {s.id: s.split for s in found.samples if s.split == "val"} == {"4.mp4": "val"}
    assert found.notes


def test_hold_out_keeps_a_video_of_several_samples_together():
    """All samples of one video fall on one side."""
    samples = [Sample(f"{v}#{n}", f"v{v}", label="abc"[n]) for v in range(5) for n in range(3)]
    done, _ = hold_out(samples, 0.4)
    sides = {s.video: {d.split for d in done if d.video == s.video} for s in samples}
    assert all(len(side) == 1 for side in sides.values())
    assert sides["v4"] == {"val"} and sides["v0"] == {"train"}
    assert {s.split for s in hold_out(samples, 0.0)[0]} == {"train"}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["label,split", "run,train"], "no column 'path'; it has: label, split"),
        (["path,split", "a.mp4,train"], "neither a column 'label' nor 'text'"),
        (["path,label,label", "a.mp4,b,c"], "'label' twice"),
        (["path,label,video", "a.mp4,b,c"], "'video' is taken"),
        (["path,label"], "no rows"),
        (["path,label", "a.mp4,run", ",run"], "line 3: the path is blank"),
        (["path,label", "a.mp4,run", "b.mp4, "], "line 3: the label is blank"),
        (["path,label,text", "a.mp4,,"], "line 2: the label is blank"),
        (["path,label,start", "a.mp4,run,1", "b.mp4,run,soon"], "line 3: start 'soon'"),
        (["path,label,start", "a.mp4,run,-1"], "line 2: start '-1'"),
        (["path,label,start", "a.mp4,run,nan"], "line 2: start 'nan'"),
        (["path,label,end", "a.mp4,run,inf"], "line 2: end 'inf'"),
        (["path,label,end", "a.mp4,run,1:2:3:4"], "line 2: end '1:2:3:4'"),
        (["path,label,start,end", "a.mp4,run,5,5"], "line 2: end 5 s does not lie after start 5"),
        (["path,label,start,end", "a.mp4,run,5,2"], "line 2: end 2 s"),
        (["path,label,end", "a.mp4,run,0"], "line 2: end 0 s"),
        (["path,label,split", "a.mp4,run,train", "b.mp4,run,"], "line 3: no split"),
        (["path,label", "a.mp4,run", "b.mp4"], "line 3: 2 columns"),
        (["path,label", "a.mp4,run,more"], "line 2: 2 columns"),
    ],
)
def test_mistakes_in_a_table_are_told_with_their_line(tmp_path, lines, words):
    path = table(tmp_path, *lines)
    with pytest.raises(AnnotationError) as caught:
        read_table(path, tmp_path)
    assert words in str(caught.value) and str(path) in str(caught.value)


def test_a_line_number_is_right_behind_a_quoted_line_break(tmp_path):
    """Lines of the file, not rows."""
    path = table(tmp_path, "path,label,text", 'a.mp4,run,"two\nlines"', "b.mp4,,")
    with pytest.raises(AnnotationError, match="line 4"):
        read_table(path, tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00p", b"path,label\na\xe4.mp4,run\n"])
def test_a_file_that_is_no_table_is_refused(tmp_path, content):
    path = tmp_path / "labels.csv"
    path.write_bytes(content)
    with pytest.raises(AnnotationError):
        read_table(path, tmp_path)


def test_a_missing_table_and_a_folder_are_refused(tmp_path):
    with pytest.raises(AnnotationError, match="no such file"):
        read_table(tmp_path / "none.csv", tmp_path)
    with pytest.raises(AnnotationError):
        read_table(tmp_path, tmp_path)


@pytest.mark.parametrize("path", ["a\0b.mp4", "x" * 5000 + ".mp4"])
def test_a_path_no_file_can_have_is_refused_or_carried(tmp_path, path):
    """An annotation error or a missing file later, not a ValueError out of the system."""
    try:
        read_table(table(tmp_path, "path,label", f"{path},run"), tmp_path)
    except AnnotationError as error:
        assert "line 2" in str(error)


def test_videos_outside_the_root_get_different_ids_without_dots(tmp_path):
    """../v.mp4 and ../../v.mp4 are two files."""
    root = tmp_path / "x" / "y"
    root.mkdir(parents=True)
    touch(tmp_path, "v.mp4", "x/v.mp4")
    found = read_table(table(tmp_path, "path,label", "../v.mp4,a", "../../v.mp4,b"), root)
    assert len(found.videos) == 2, "one of the two videos is taken for the other"
    for video in found.videos:
        assert ".." not in Path(video.id).parts and not video.id.startswith("/")
