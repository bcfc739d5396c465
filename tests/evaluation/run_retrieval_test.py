"""Retrieval of a split with made-up vectors, against loops over queries and candidates."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from matinee.data.batch import Batch
from matinee.errors import ConfigError, MatineeError
from matinee.evaluation.embeddings import embed_clips
from matinee.evaluation.run_retrieval import run_retrieval
from matinee.models.text import Tokens
from matinee.pack.reading.selection import SampleTable

CLIPS, VIEWS, WIDTH = 24, 2, 4
RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(CLIPS, VIEWS, WIDTH))
VECTORS /= np.linalg.norm(VECTORS, axis=2, keepdims=True)
CAPTIONS = [
    [f"clip {i} is seen"] + [f"{k} more of {i}" for k in range(i % 3)] for i in range(CLIPS)
]
CAPTIONS[5] = list(CAPTIONS[4])  # two clips with one sentence
WORDS = {text: RNG.normal(size=WIDTH) for own in CAPTIONS for text in own}


class Text(nn.Module):
    """Ids are places among the words; a text with a number of two digits is too long."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.tensor(np.array(list(WORDS.values()))).float())
        self.places = {text: i for i, text in enumerate(WORDS)}

    def tokenize(self, texts):
        cut = sum(any(len(word) > 1 and word.isdigit() for word in t.split()) for t in texts)
        return Tokens(torch.tensor([self.places[text] for text in texts]), cut)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.text = Text()

    def embed_video(self, video_BCTHW):
        return F.normalize(video_BCTHW.flatten(1), dim=1)

    def embed_text(self, ids):
        return F.normalize(self.text.rows[ids], dim=1)


class Task(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()


def make_loader(captions=CAPTIONS, *, invalid=(), columns=None):
    """Batches of five items; a clip's pixels are its vector."""
    items = [(i, view) for i in range(CLIPS) for view in range(VIEWS)]
    batches = []
    for start in range(0, len(items), 5):
        part = items[start : start + 5]
        rows = [i for i, _ in part]
        valid = [item not in invalid for item in part]
        batches.append(
            Batch(
                video=torch.tensor(np.array([VECTORS[p] for p in part])).float()[
                    ..., None, None, None
                ],
                target=torch.full((len(part),), -1),
                valid=torch.tensor(valid),
                index=torch.tensor(rows),
                samples=tuple(f"s{i}" for i in rows),
                num_valid=sum(valid),
                texts=("",) * len(part),
                seeds=torch.zeros(len(part), dtype=torch.int64),
            )
        )
    pack = SampleTable()
    pack.path = Path("some.pack")
    pack.samples = pa.table(
        {
            "sample": [f"s{i}" for i in range(CLIPS)],
            "text": ["\n".join([*own, " "]) for own in captions],
            **(columns or {}),
        }
    )

    class Loader(SimpleNamespace):
        def __iter__(self):
            return iter(batches)

    rows = np.arange(CLIPS)
    return Loader(pack=pack, samples=rows, all_samples=rows, views=(VIEWS, 1), num_items=len(items))


def similarity(clips, *, invalid=()):
    """Of the clips' mean views and every caption, with whose caption it is: [V, T], [T]."""
    rows, owners, texts = [], [], []
    for place, i in enumerate(clips):
        for text in CAPTIONS[i]:
            texts.append(WORDS[text] / np.linalg.norm(WORDS[text]))
            owners.append(place)
    for i in clips:
        seen = [VECTORS[i, v] for v in range(VIEWS) if (i, v) not in invalid]
        mean = np.mean(seen, axis=0)
        rows.append(mean / np.linalg.norm(mean))
    return np.array(rows) @ np.array(texts).T, owners


def looped(clips, **more):
    """Recalls and ranks: how many wrong candidates are at least as near as the right one."""
    s, owners = similarity(clips, **more)
    ranks = {"t2v": [], "v2t": []}
    for t, owner in enumerate(owners):
        nearer = [v for v in range(len(clips)) if v != owner and s[v, t] >= s[owner, t]]
        ranks["t2v"].append(1 + len(nearer))
    for v in range(len(clips)):
        best = max(s[v, t] for t, owner in enumerate(owners) if owner == v)
        ranks["v2t"].append(1 + sum(s[v, t] >= best for t, o in enumerate(owners) if o != v))
    found = {}
    for way, held in ranks.items():
        found |= {f"{way}_r{k}": sum(r <= k for r in held) / len(held) for k in (1, 5, 10)}
        found |= {f"{way}_median_rank": np.median(held), f"{way}_mean_rank": np.mean(held)}
    return found, ranks


def test_recalls_count_every_caption_as_a_query():
    """With several captions a clip, lines of its text, and views that are averaged."""
    task = Task().train()
    found = run_retrieval(task, make_loader())
    wanted, ranks = looped(range(CLIPS))
    for name, value in wanted.items():
        assert found.metrics[name] == pytest.approx(value), name
    assert found.metrics["samples"] == CLIPS and found.metrics["skipped"] == 0
    assert found.metrics["captions"] == sum(map(len, CAPTIONS))
    # "clip 10 is seen", …, each more of 10, …
    assert found.metrics["cut"] == sum(len(own) for own in CAPTIONS[10:])
    assert not any(name.startswith("mir") for name in found.metrics)
    s, owners = similarity(range(CLIPS))
    texts = [text for own in CAPTIONS for text in own]
    for t, row in enumerate(found.predictions):
        assert row["text"] == texts[t] and row["sample"] == f"s{owners[t]}"
        assert row["rank"] == ranks["t2v"][t] and row["index"] == owners[t]
        assert row["nearest"] == f"s{int(s[:, t].argmax())}"
        assert row["similarity"] == pytest.approx(s[owners[t], t], abs=1e-6)
    assert task.training


def test_a_clips_vector_is_the_mean_over_its_views():
    """Of those that could be read, not yet of length one."""
    task, invalid = Task(), {(3, 0), (7, 0), (7, 1)}
    loader = make_loader(invalid=invalid)
    found = embed_clips(lambda batch: task.model.embed_video(batch.video), loader)
    assert found.index.tolist() == [i for i in range(CLIPS) if i != 7] and found.skipped == ("s7",)
    for row, i in enumerate(found.index.tolist()):
        seen = [VECTORS[i, v] for v in range(VIEWS) if (i, v) not in invalid]
        assert found.vectors[row] == pytest.approx(np.mean(seen, axis=0), abs=1e-6)


def test_clips_that_could_not_be_read_are_left_out_with_their_captions():
    """One lacks a view; the other all, and so is neither query nor candidate."""
    invalid = {(3, 0), (7, 0), (7, 1)}
    found = run_retrieval(Task(), make_loader(invalid=invalid))
    clips = [i for i in range(CLIPS) if i != 7]
    wanted, _ = looped(clips, invalid=invalid)
    for name, value in wanted.items():
        assert found.metrics[name] == pytest.approx(value), name
    assert found.metrics["skipped"] == 1 and found.metrics["samples"] == CLIPS - 1
    assert "s7" not in {row["sample"] for row in found.predictions}


VERBS = [[["take"], ["take", "hold"], ["cut"]][i % 3] for i in range(CLIPS)]
NOUNS = [[["cup"], ["knife"], ["cup", "pan"], ["pan"]][i % 4] for i in range(CLIPS)]


def class_columns(bare=()):
    """`verb` and `noun` of each clip; a clip in `bare` lacks one of them."""
    verbs = [" | ".join(own) for own in VERBS]
    nouns = ["|".join(own) for own in NOUNS]
    for number, i in enumerate(bare):
        (verbs, nouns)[number % 2][i] = (None, " ")[number % 2]
    return {"verb": verbs, "noun": nouns}


def iou(a, b):
    return len(set(a) & set(b)) / len(set(a) | set(b))


def looped_mir(clips, sentences):
    """Textbook mAP and nDCG by loops over each query's ranking; sentences are (text, whose)."""
    vectors = {i: VECTORS[i].mean(axis=0) for i in clips}
    s = np.array([[vectors[i] @ WORDS[t] / np.linalg.norm(vectors[i]) / np.linalg.norm(WORDS[t])
                   for t, _ in sentences] for i in clips])  # fmt: skip
    relevancy = np.array(
        [
            [(iou(VERBS[i], VERBS[j]) + iou(NOUNS[i], NOUNS[j])) / 2 for _, j in sentences]
            for i in clips
        ]
    )
    found = {}
    for way, sim, rel in (("v2t", s, relevancy), ("t2v", s.T, relevancy.T)):
        precisions, gains = [], []
        for q in range(len(sim)):
            order = np.lexsort((rel[q], -sim[q])).tolist()  # of equally near ones the worst first
            hits, precision = 0, []
            for rank, c in enumerate(order, start=1):
                if rel[q, c] == 1:
                    hits += 1
                    precision.append(hits / rank)
            if precision:
                precisions.append(np.mean(precision))
            top = [rel[q, c] for c in order][: int((rel[q] > 0).sum())]
            dcg = sum(r / math.log2(1 + k) for k, r in enumerate(top, start=1))
            best = sorted(rel[q], reverse=True)
            gains.append(dcg / sum(r / math.log2(1 + k) for k, r in enumerate(best, start=1)))
        found |= {f"mir_binary_{way}_map": np.mean(precisions),
                  f"mir_graded_{way}_ndcg": np.mean(gains)}  # fmt: skip
    return found


def distinct(clips):
    """Each text once, with the first of these clips that it is a caption of."""
    first = {}
    for i in clips:
        for text in CAPTIONS[i]:
            first.setdefault(text, i)
    return list(first.items())


def test_verbs_and_nouns_give_mir_over_distinct_sentences():
    """Clips 4 and 5 have one sentence, whose verbs and nouns are those of 4."""
    assert (VERBS[4], NOUNS[4]) != (VERBS[5], NOUNS[5])
    found = run_retrieval(Task(), make_loader(columns=class_columns())).metrics
    sentences = distinct(range(CLIPS))
    assert len(sentences) < found["captions"]
    for name, value in looped_mir(range(CLIPS), sentences).items():
        assert found[name] == pytest.approx(value, rel=1e-6), name
    counts = {name: found[f"mir_{name}"] for name in ("clips", "left_out", "sentences", "source")}
    assert counts == {
        "clips": CLIPS, "left_out": 0, "sentences": len(sentences), "source": "distinct captions",
    }  # fmt: skip


def test_clips_without_verb_or_noun_are_left_out_of_mir_and_counted():
    """Of the sentence that clips 4 and 5 share, 5 then gives the classes."""
    bare = (4, 9)
    found = run_retrieval(Task(), make_loader(columns=class_columns(bare))).metrics
    clips = [i for i in range(CLIPS) if i not in bare]
    sentences = distinct(clips)
    assert (CAPTIONS[5][0], 5) in sentences
    for name, value in looped_mir(clips, sentences).items():
        assert found[name] == pytest.approx(value, rel=1e-6), name
    assert (found["mir_clips"], found["mir_left_out"]) == (CLIPS - 2, 2)
    assert found["samples"] == CLIPS and found["t2v_r1"] == looped(range(CLIPS))[0]["t2v_r1"]
    nobody = run_retrieval(Task(), make_loader(columns=class_columns(range(CLIPS)))).metrics
    assert (nobody["mir_clips"], nobody["mir_left_out"]) == (0, CLIPS)
    assert "mir_graded_average_map" not in nobody and "t2v_r1" in nobody


def test_the_benchmarks_own_sentences_take_the_place_of_captions_in_mir(tmp_path):
    """Some of them twice, some of no caption of their clip; found by narration id."""
    asked = [("P07_1", CAPTIONS[3][0]), ("P02_9", CAPTIONS[8][1]), ("P01_3", CAPTIONS[3][0]),
             ("P07_2", CAPTIONS[20][0])]  # fmt: skip
    ids = [f"other {i}" for i in range(CLIPS)]
    owners = {"P07_1": 11, "P02_9": 8, "P01_3": 0, "P07_2": 2}
    for name, i in owners.items():
        ids[i] = name
    table = tmp_path / "sentences.csv"
    table.write_text("narration_id,narration\n" + "".join(f"{n},{t}\n" for n, t in asked))
    columns = class_columns() | {"narration_id": ids}
    found = run_retrieval(Task(), make_loader(columns=columns), sentences=table).metrics
    wanted = looped_mir(range(CLIPS), [(text, owners[name]) for name, text in asked])
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name
    assert (found["mir_sentences"], found["mir_source"]) == (4, "sentences.csv")
    assert found["captions"] == sum(map(len, CAPTIONS))  # recalls stay those of captions


def test_sentences_that_do_not_fit_the_pack_are_refused_before_a_clip_is_read(tmp_path):
    """One line each."""
    table = tmp_path / "s.csv"
    table.write_text("narration_id,narration\ns3,x\ns99,y\n")

    def refused(columns, words):
        done = []
        with pytest.raises(ConfigError, match=words):
            run_retrieval(
                Task(), make_loader(columns=columns), sentences=table, on_batch=done.append
            )
        assert not done

    refused(None, "--sentences .*s.csv: some.pack has no columns verb and noun")
    refused(class_columns(), r"no sample for 1 of 2 narration ids \(column 'sample'\).* 's99'")
    table.write_text("narration_id,narration\ns3,x\ns5,y\n")
    refused(class_columns((5,)), "1 of 2 sentences are of samples without a verb .* 's5'")


def test_samples_without_caption_are_named_before_a_clip_is_read():
    captions, done = [*CAPTIONS[:-2], [], []], []
    with pytest.raises(ConfigError, match=r"some.pack: 2 of 24 samples .* no caption .* 's22'"):
        run_retrieval(Task(), make_loader(captions), on_batch=done.append)
    loader = make_loader()
    loader.pack.samples = loader.pack.samples.drop_columns("text")
    with pytest.raises(ConfigError, match="24 of 24 samples"):
        run_retrieval(Task(), loader, on_batch=done.append)
    assert not done


def test_a_stop_is_obeyed_and_nothing_read_is_an_error():
    task = Task().train()
    assert run_retrieval(task, make_loader(), should_stop=lambda: True) is None and task.training
    everything = {(i, view) for i in range(CLIPS) for view in range(VIEWS)}
    with pytest.raises(MatineeError, match="none of 24 samples could be read"):
        run_retrieval(task, make_loader(invalid=everything))
    assert task.training
