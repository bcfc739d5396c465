"""EgoMCQ against a loop; its file, and files that only look like it."""

import copy
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matinee.errors import AnnotationError, ConfigError
from matinee.evaluation.egomcq import INTER, INTRA, Candidate, egomcq_accuracy, read_egomcq


@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 2**31))
def test_accuracy_equals_a_loop_and_a_tie_is_a_miss(questions, levels, seed):
    """Few levels of similarity, so that ties are common."""
    rng = np.random.default_rng(seed)
    similarity = rng.integers(0, levels, (questions, 5)).astype(np.float32)
    answers, types = rng.integers(0, 5, questions), rng.integers(1, 3, questions)
    found = egomcq_accuracy(similarity, answers, types)
    for name, kind in (("inter", 1), ("intra", 2)):
        right = [
            all(row[answer] > row[other] for other in range(5) if other != answer)
            for row, answer, type_ in zip(similarity, answers, types, strict=True)
            if type_ == kind
        ]
        assert found[f"{name}_questions"] == len(right)
        assert found[f"{name}_video"] == (pytest.approx(np.mean(right)) if right else None)


def test_constant_similarity_is_never_right_and_the_two_types_stay_apart():
    """Perfect between videos, wrong within one."""
    answers = np.array([0, 1, 2, 3])
    types = np.array([INTER, INTER, INTRA, INTRA])
    similarity = np.eye(5)[answers]
    similarity[2:] *= -1
    found = egomcq_accuracy(similarity, answers, types)
    assert found["inter_video"] == 1 and found["intra_video"] == 0
    assert egomcq_accuracy(np.zeros((4, 5)), answers, types)["inter_video"] == 0


def test_arrays_of_another_form_are_refused():
    """One line each."""
    zeros, answers, types = np.zeros((2, 5)), np.array([0, 4]), np.array([1, 2])
    with pytest.raises(ConfigError, match=r"shape \(2, 4\)"):
        egomcq_accuracy(zeros[:, :4], answers, types)
    with pytest.raises(ConfigError, match="answers must lie in 0 … 4"):
        egomcq_accuracy(zeros, np.array([0, 5]), types)
    with pytest.raises(ConfigError, match="types must be 1"):
        egomcq_accuracy(zeros, answers, np.array([1, 0]))
    with pytest.raises(ConfigError, match="NaN"):
        egomcq_accuracy(zeros * np.nan, answers, types)


def published():
    """Two questions in the layout of the file."""
    clip = lambda v, s: {  # noqa: E731
        "video_uid": v, "clip_start": s, "clip_end": s + 1.5, "narration_time": s,
        "clip_text": "#C C opens a drawer", "tag_verb": "[77]", "tag_noun": "[163]",
    }  # fmt: skip
    inter = {str(i): clip(f"video-{i}", 10.0 * i) for i in range(5)}
    intra = {str(i): clip("video-0", 2.0 * i - 1) for i in range(5)}
    return {
        "0": {"answer": 3, "query": inter["3"], "choices": inter, "types": 1},
        "1": {"answer": 0, "query": intra["0"], "choices": intra, "types": 2},
    }


def test_the_published_layout_is_read_and_times_below_zero_are_zero(tmp_path):
    """Numbers may also stand as text."""
    content = published()
    content["0"]["choices"]["2"]["clip_start"] = "20.25"
    (tmp_path / "egomcq.json").write_text(json.dumps(content))
    first, second = read_egomcq(tmp_path / "egomcq.json")
    assert (first.answer, first.type, second.answer, second.type) == (3, INTER, 0, INTRA)
    assert first.text == "#C C opens a drawer"
    assert first.candidates[2] == Candidate("video-2", 20.25, 21.5)
    assert second.candidates[0] == Candidate("video-0", 0.0, 0.5)
    assert {c.video for c in second.candidates} == {"video-0"}


def broken(change):
    content = copy.deepcopy(published())
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not sound JSON"),
        ("[" * 100_000, "is not sound JSON"),
        ('{"0": 1, "0": 2}', "the key '0' stands twice"),
        ("[]", "holds no questions"),
        ("{}", "holds no questions"),
        ('{"0": NaN}', "NaN is no number"),
        ('{"0": 3}', "question 0: no field 'query'"),
        (broken(lambda c: c.pop("0")), "question 0: missing"),
        (broken(lambda c: c["1"].pop("answer")), "question 1: no field 'answer'"),
        (broken(lambda c: c["1"].update(answer=5)), "answer 5 is none of the 5 choices"),
        (broken(lambda c: c["1"].update(answer=True)), "answer is bool"),
        (broken(lambda c: c["1"].update(answer="0")), "answer is str"),
        (broken(lambda c: c["1"].update(types=0)), "types 0 is neither 1 nor 2"),
        (broken(lambda c: c["1"]["choices"].pop("4")), 'choices must be "0" … "4"'),
        (broken(lambda c: c["1"]["choices"].update({"4": []})), "choice 4: no field 'video_uid'"),
        (broken(lambda c: c["1"]["choices"]["2"].update(clip_start="x")), "choice 2: clip_start"),
        (broken(lambda c: c["1"]["choices"]["2"].update(clip_start="inf")), "choice 2: clip_start"),
        (broken(lambda c: c["1"]["choices"]["2"].update(clip_end=2)), "lies before clip_start 3 s"),
        (broken(lambda c: c["1"]["choices"]["2"].update(video_uid="")), "video_uid is blank"),
        (broken(lambda c: c["1"]["query"].update(clip_text=" ")), "clip_text is blank"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "egomcq.json"
    path.write_text(text)
    with pytest.raises(AnnotationError, match=message) as error:
        read_egomcq(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(AnnotationError, match="cannot be read: No such file"):
        read_egomcq(tmp_path / "none.json")
