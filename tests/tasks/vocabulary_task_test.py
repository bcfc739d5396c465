"""Classes and targets of small tables, by hand."""

import json

import numpy as np
import pyarrow as pa
import pytest

from matinee.errors import ConfigError
from matinee.tasks.config import ClassificationConfig
from matinee.tasks.vocabulary import Vocabulary, make_targets, read_vocabulary, split_labels

SINGLE = ClassificationConfig()
MULTI = ClassificationConfig(labels="multi")
PAIRS = ClassificationConfig(labels="verb+noun")


def everything(table):
    return np.arange(table.num_rows)


def test_single_labels_are_classes_in_alphabetical_order():
    table = pa.table({"label": ["run", None, "jump", "run", "bend"]})
    vocabulary = read_vocabulary(table, SINGLE)
    assert vocabulary == Vocabulary(("bend", "jump", "run"))
    targets = make_targets(table, SINGLE, vocabulary, everything(table))
    assert targets.dtype == np.int64 and targets.tolist() == [2, -1, 1, 2, 0]


def test_several_labels_share_a_cell():
    table = pa.table({"label": ["run | jump", None, "jump", " bend|run |", "a, b"]})
    vocabulary = read_vocabulary(table, MULTI)
    assert vocabulary == Vocabulary(("a, b", "bend", "jump", "run"))
    targets = make_targets(table, MULTI, vocabulary, everything(table))
    assert targets.dtype == np.float32
    assert targets.tolist() == [[0, 0, 1, 1], [0] * 4, [0, 0, 1, 0], [0, 1, 0, 1], [1, 0, 0, 0]]


def test_pairs_of_verb_and_noun_know_their_parts():
    table = pa.table(
        {
            "label": [None] * 5,
            "verb": ["take", "put", "take", "take", None],
            "noun": ["cup", "cup", "knife", "cup", "cup"],
        }
    )
    vocabulary = read_vocabulary(table, PAIRS)
    assert vocabulary.classes == ("put cup", "take cup", "take knife")
    assert vocabulary.verbs == ("put", "take") and vocabulary.nouns == ("cup", "knife")
    for k, name in enumerate(vocabulary.classes):
        verb = vocabulary.verbs[vocabulary.verb_of[k]]
        noun = vocabulary.nouns[vocabulary.noun_of[k]]
        assert name == f"{verb} {noun}"
    targets = make_targets(table, PAIRS, vocabulary, everything(table))
    assert targets.tolist() == [1, 0, 2, 1, -1]


def test_pairs_that_read_alike_are_refused():
    """ "pick" and "up cup" is not "pick up" and "cup"."""
    table = pa.table({"label": [None] * 2, "verb": ["pick", "pick up"], "noun": ["up cup", "cup"]})
    with pytest.raises(ConfigError, match="'pick up cup' is more than one pair"):
        read_vocabulary(table, PAIRS)


def test_a_blank_verb_or_noun_is_no_label():
    """Cells of a CSV table are blank, not null."""
    table = pa.table(
        {"label": [None] * 3, "verb": ["take", "", "put"], "noun": ["cup", "cup", " "]}
    )
    vocabulary = read_vocabulary(table, PAIRS)
    assert vocabulary.classes == ("take cup",)
    assert make_targets(table, PAIRS, vocabulary, everything(table)).tolist() == [0, -1, -1]


@pytest.mark.parametrize("config", [SINGLE, MULTI])
def test_an_unknown_label_is_named_with_what_is_known(config):
    vocabulary = Vocabulary(tuple("abcdefg"))
    table = pa.table({"label": ["a", "swim"]})
    with pytest.raises(ConfigError, match=r"'swim' is not among the 7 known classes: a, b.* …$"):
        make_targets(table, config, vocabulary, everything(table))


def test_an_unknown_pair_is_named():
    vocabulary = Vocabulary(("take cup",), ("take",), ("cup",), (0,), (0,))
    table = pa.table({"label": [None], "verb": ["put"], "noun": ["cup"]})
    with pytest.raises(ConfigError, match="'put cup' is not among the 1 known classes: take cup"):
        make_targets(table, PAIRS, vocabulary, everything(table))


def test_labels_outside_the_rows_asked_for_are_not_looked_at():
    vocabulary = Vocabulary(("a", "b"))
    table = pa.table({"label": ["swim", "b", "a"]})
    assert make_targets(table, SINGLE, vocabulary, np.array([1])).tolist() == [-1, 1, -1]
    several = make_targets(table, MULTI, vocabulary, np.array([2]))
    assert several.tolist() == [[0, 0], [0, 0], [1, 0]]


@pytest.mark.parametrize("missing", ["verb", "noun"])
def test_a_missing_column_is_named_with_those_there_are(missing):
    table = pa.table({"label": ["a"], "verb": ["take"], "noun": ["cup"]}).drop_columns([missing])
    with pytest.raises(ConfigError, match=f"'{missing}' is not among label"):
        read_vocabulary(table, PAIRS)


def test_vocabularies_survive_json():
    for vocabulary in (
        Vocabulary(("a", "b")),
        Vocabulary(("put cup", "take cup"), ("put", "take"), ("cup",), (0, 1), (0, 0)),
    ):
        plain = json.loads(json.dumps(vocabulary.to_dict()))
        assert Vocabulary.from_dict(plain) == vocabulary


def test_split_labels_drops_blanks():
    assert split_labels(" a |b||  ") == ["a", "b"] and split_labels("") == []
