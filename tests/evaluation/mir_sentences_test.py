"""The published sentences of EK-100 retrieval, by way of a pack, are those of its own tables."""

import csv
from ast import literal_eval
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from matinee.evaluation.epic100 import mir_metrics, relevancy_matrix
from matinee.evaluation.epic100_csv import read_clips, read_sentences
from matinee.evaluation.mir import distinct_captions, mir_of, read_class_sets, read_official
from matinee.pack.reading.selection import SampleTable


@pytest.fixture(scope="module")
def pack(real_data):
    """The test clips, their classes as numbers written out, as one would pack them."""
    with (real_data / "epic100" / "EPIC_100_retrieval_test.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = SampleTable()
    table.path = Path("epic.pack")
    table.samples = pa.table(
        {
            "sample": [f"{row['video_id']}.MP4#{i}" for i, row in enumerate(rows)],
            "narration_id": [row["narration_id"] for row in rows],
            "text": [row["narration"] for row in rows],
            "verb": [row["verb_class"] for row in rows],
            "noun": ["|".join(map(str, literal_eval(row["all_noun_classes"]))) for row in rows],
        }
    )
    return table


def test_the_official_sentences_give_the_figures_of_the_official_tables(pack, real_data):
    """Some clips against all 3842 sentences, random similarities."""
    folder = real_data / "epic100"
    file = folder / "EPIC_100_retrieval_test_sentence.csv"
    clips = read_clips(folder / "EPIC_100_retrieval_test.csv")
    wanted = read_sentences(file, clips)
    sets = read_class_sets(pack)
    sentences = read_official(file, pack, sets)
    assert sentences.texts == wanted.texts
    rng = np.random.default_rng(0)
    index = np.sort(rng.choice(len(clips), 200, replace=False))
    similarity = rng.standard_normal((200, 3842)).astype(np.float32)
    found = mir_of(similarity, index, sentences, sets)
    assert (found["mir_clips"], found["mir_sentences"]) == (200, 3842)
    assert found["mir_source"] == "EPIC_100_retrieval_test_sentence.csv"
    relevancy = relevancy_matrix(
        [clips.verbs[i] for i in index], [clips.nouns[i] for i in index],
        wanted.verbs, wanted.nouns,
    )  # fmt: skip
    for kind in ("graded", "binary"):
        for name, value in mir_metrics(similarity, relevancy, kind).items():
            assert found[f"mir_{kind}_{name}"] == value


def test_the_distinct_narrations_are_seven_fewer(pack):
    """As Note [Sentences of MIR] says."""
    texts = pack.samples.column("text").to_pylist()
    rows = np.arange(len(texts))
    sentences, places = distinct_captions(texts, rows, read_class_sets(pack))
    assert len(sentences.texts) == len(set(texts)) == 3835
    assert [texts[place] for place in places] == list(sentences.texts)
    assert sentences.rows.tolist() == [texts.index(text) for text in sentences.texts]
