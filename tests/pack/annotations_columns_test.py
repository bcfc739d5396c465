"""Samples by columns: the same as objects, counted, held out, fitted and digested alike."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matinee.errors import AnnotationError
from matinee.pack.annotations import Annotations, Sample, Samples, VideoFile, hold_out
from matinee.pack.writing.finish import fit_samples

names = st.sampled_from(["a", "b/ü.mp4", "c d", ""])
times = st.none() | st.floats(0, 50)
samples = st.lists(
    st.builds(
        Sample,
        id=st.text(st.characters(codec="utf-8"), max_size=3),
        video=names,
        label=st.none() | names,
        split=st.none() | st.sampled_from(["train", "val"]),
        start=times,
        end=times,
        text=st.none() | st.text(st.characters(codec="utf-8"), max_size=9),
        extra=st.sampled_from([(), (("x", "1"),), (("x", ""), ("y", "2"))]),
    ),
    max_size=8,
)


@given(samples)
def test_objects_come_back_from_columns(given):
    """Whole, one by one, from the end, in slices."""
    held = Samples.of(given)
    assert list(held) == given and len(held) == len(given) and held == given
    assert [held[n] for n in range(len(given))] == given
    assert [held[-n - 1] for n in range(len(given))] == given[::-1]
    assert list(held[1:6:2]) == given[1:6:2]
    with pytest.raises(IndexError):
        held[len(given)]


@given(samples, st.integers(0, 8))
def test_the_digest_is_of_what_is_said_not_of_pieces(given, cut):
    """Equal for tables in other pieces; another for any other sample."""
    held = Samples.of(given)
    table = pa.concat_tables([held.table.slice(0, cut), held.table.slice(cut)])
    assert Samples(table).digest() == held.digest()
    for n, sample in enumerate(given):
        for other in (
            replace(sample, id=sample.id + "x"),
            replace(sample, text="" if sample.text is None else None),
            replace(sample, start=None if sample.start == 0.0 else 0.0),
            replace(sample, video=sample.video + "x"),
        ):
            assert Samples.of([*given[:n], other, *given[n + 1 :]]).digest() != held.digest()


def test_the_digest_tells_where_one_text_ends():
    """ "ab", "c" is not "a", "bc"."""
    one, two = (
        [Sample("1", "v", text=a), Sample("2", "v", text=b)] for a, b in (("ab", "c"), ("a", "bc"))
    )
    assert Samples.of(one).digest() != Samples.of(two).digest()


@given(st.lists(names, max_size=12))
def test_samples_without_ids_are_numbered_within_their_video(videos):
    """Against counting them one by one; from a list and from a dictionary array."""
    uses, seen = Counter(videos), Counter()
    expected = []
    for video in videos:
        expected.append(f"{video}#{seen[video]}" if uses[video] > 1 else video)
        seen[video] += 1
    for column in (videos, pa.array(videos, pa.string()).dictionary_encode()):
        held = Samples.from_columns(column)
        assert [sample.id for sample in held] == expected
        assert [sample.video for sample in held] == videos


@given(samples, st.sampled_from([0.0, 0.2, 0.5, 0.9]))
def test_held_out_videos_are_the_last_of_each_class(given, fraction):
    """Against sets and sorting."""
    held = set()
    for label in {sample.label or "" for sample in given}:
        videos = sorted({s.video for s in given if (s.label or "") == label})
        held |= set(videos[len(videos) - round(len(videos) * fraction) :])
    done, note = hold_out(given, fraction)
    assert list(done) == [replace(s, split="val" if s.video in held else "train") for s in given]
    assert f"({len(held)} of {len({s.video for s in given})})" in note


@given(samples, st.dictionaries(names, st.floats(0.1, 50)))
def test_samples_beyond_their_video_are_refused_one_by_one(given, durations):
    """Against the rule written out: a tenth of a second over is allowed; absent videos are not
    told again.
    """
    kept, refused = [], []
    for s in given:
        if s.video not in durations:
            continue
        start, end = s.start or 0.0, s.end or 0.0
        if max(start, end) > durations[s.video] + 0.1 or start >= durations[s.video]:
            refused.append(f"{s.video} (sample {s.id})")
        else:
            kept.append(s)
    table, failures = fit_samples(Samples.of(given).table, durations)
    assert list(Samples(table)) == kept
    assert [failure.path for failure in failures] == refused


@pytest.mark.parametrize(("start", "end", "fits"), [
    (None, 1.05, True), (0.5, 1.1, True), (None, 1.12, False), (1.0, None, False),
    (0.99, None, True), (None, None, True),
])  # fmt: skip
def test_a_tenth_of_a_second_over_is_allowed(start, end, fits):
    """Of a video that lasts one second."""
    table, failures = fit_samples(
        Samples.of([Sample("1", "v", start=start, end=end)]).table, {"v": 1.0}
    )
    assert (table.num_rows, len(failures)) == ((1, 0) if fits else (0, 1))


def test_annotations_are_checked_as_a_whole(tmp_path):
    """Ids once, samples of videos that are given, no id that leaves the folder."""
    video = VideoFile("a", tmp_path / "a")
    one = Sample("1", "a")
    assert Annotations((video,), (one,)).samples == [one]
    for videos, rows, words in [
        ((video, video), (one,), "two videos have the id 'a'"),
        ((video,), (one, one), "two samples have the id '1'"),
        ((video,), (one, Sample("2", "b")), "of video 'b', which is not given"),
        ((VideoFile("../a", tmp_path),), (), "without '..'"),
        ((VideoFile("/a", tmp_path),), (), "without '..'"),
        ((VideoFile("", tmp_path),), (), "expected a relative path"),
    ]:
        with pytest.raises(AnnotationError, match=words):
            Annotations(videos, rows)


def test_a_name_that_is_no_text_is_refused_alone(tmp_path):
    """File systems allow it; the other videos stay."""
    bad = "b\udcff.mp4"
    videos = (VideoFile("a", tmp_path / "a"), VideoFile(bad, tmp_path / bad))
    found = Annotations(videos, (Sample("1", "a"), Sample("2", bad)))
    assert [v.id for v in found.videos] == ["a"] and [s.id for s in found.samples] == ["1"]
    assert found.refused == ((str(tmp_path / bad), "has a name that is not UTF-8"),)


def test_half_a_character_in_a_column_is_an_error():
    with pytest.raises(AnnotationError, match=r"'text' holds .* no Unicode"):
        Samples.from_columns(["a"], text=["x\ud800"])
