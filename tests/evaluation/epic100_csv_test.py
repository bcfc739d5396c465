"""Reading EK-100's tables: what they say, and what is refused."""

import csv
from ast import literal_eval

import pytest

from matinee.errors import AnnotationError
from matinee.evaluation.epic100_csv import read_clips, read_sentences

CLIPS = "narration_id,narration,verb_class,all_noun_classes\n"


def test_real_tables_equal_the_csv_module_and_python_literals(real_data):
    """Ids, texts and classes of every row; a sentence has the classes of its clip."""
    folder = real_data / "epic100"
    clips = read_clips(folder / "EPIC_100_retrieval_test.csv")
    sentences = read_sentences(folder / "EPIC_100_retrieval_test_sentence.csv", clips)
    with (folder / "EPIC_100_retrieval_test.csv").open(newline="") as file:
        rows = {row["narration_id"]: row for row in csv.DictReader(file)}
    assert clips.ids == tuple(rows) and len(sentences) == 3842
    for read in (clips, sentences):
        for name, verbs, nouns in zip(read.ids, read.verbs, read.nouns, strict=True):
            assert verbs == {int(rows[name]["verb_class"])}
            assert nouns == set(literal_eval(rows[name]["all_noun_classes"]))
    # The remark of `read_sentences` about the published file.
    other = [t for n, t in zip(sentences.ids, sentences.texts, strict=True)
             if t != rows[n]["narration"]]  # fmt: skip
    twice = [text for text in sentences.texts if sentences.texts.count(text) > 1]
    assert len(other) == 6 and len(twice) == 13


def test_train_sentences_carry_their_own_classes(real_data):
    """No file of clips is needed."""
    table = real_data / "epic100" / "EPIC_100_retrieval_train_sentence.csv"
    sentences = read_sentences(table)
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sentences.nouns == tuple(frozenset(literal_eval(row["noun_classes"])) for row in rows)
    assert sentences.texts == tuple(row["narration"] for row in rows)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CLIPS + "a,x,3,[1]\na,y,3,[1]\n", r"line 3: narration id 'a' stands there twice"),
        (CLIPS + "a,x,three,[1]\n", r"line 2: verb_class 'three' is no number"),
        (CLIPS + "a,x,-1,[1]\n", r"line 2: verb_class '-1'"),
        (CLIPS + "a,x,3,[]\n", r"line 2: all_noun_classes '\[\]' is not a list"),
        (CLIPS + "a,x,3,__import__('os')\n", r"line 2: all_noun_classes"),
        (CLIPS + 'a,x,3,"[1, [2]]"\n', r"line 2: all_noun_classes"),
        (CLIPS + "a,x,3,[9999999999]\n", r"line 2: all_noun_classes"),
        (CLIPS + "a,x,3\n", r"line 2: 4 columns were expected"),
        (CLIPS, "has a header but no rows"),
        ("narration_id,narration\na,x\n", "has no column 'verb_class'; it has: narration_id"),
        ("", "it has: nothing"),
        (b"\xff\xfe", "is not a CSV table in UTF-8"),
    ],
)
def test_bad_clips_are_refused_with_their_line(tmp_path, content, message):
    table = tmp_path / "clips.csv"
    table.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(AnnotationError, match=message) as error:
        read_clips(table)
    assert str(table) in str(error.value)


def test_sentences_need_clips_that_have_their_ids(tmp_path):
    """And a file that is there."""
    (tmp_path / "clips.csv").write_text(CLIPS + 'a,take cup,3,"[1, 2]"\n')
    (tmp_path / "sentences.csv").write_text("narration_id,narration\na,take cup\nb,cut\n")
    clips = read_clips(tmp_path / "clips.csv")
    with pytest.raises(AnnotationError, match="line 3: no clip has the narration id 'b'"):
        read_sentences(tmp_path / "sentences.csv", clips)
    with pytest.raises(AnnotationError, match="the file of the clips is needed"):
        read_sentences(tmp_path / "sentences.csv")
    with pytest.raises(AnnotationError, match="cannot be read: No such file"):
        read_sentences(tmp_path / "none.csv", clips)
