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
from matinee.pack.selection import SampleTable

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

    return Loader(pack=pack, samples=np.arange(CLIPS), views=(VIEWS, 1), num_items=len(items))


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


VERBS = [["take"], ["take", "hold"], ["cut"]]
NOUNS = [["cup"], ["knife"], ["cup", "pan"], ["pan"]]


def test_verbs_and_nouns_give_mir_over_distinct_sentences():
    """Textbook mAP and nDCG by loops over each query's ranking. Clips 4 and 5 have one sentence,
    whose verbs and nouns are those of 4."""
    verbs = [VERBS[i % 3] for i in range(CLIPS)]
    nouns = [NOUNS[i % 4] for i in range(CLIPS)]
    assert (verbs[4], nouns[4]) != (verbs[5], nouns[5])
    columns = {
        "verb": [" | ".join(own) for own in verbs], "noun": ["|".join(own) for own in nouns],
    }  # fmt: skip
    found = run_retrieval(Task(), make_loader(columns=columns)).metrics
    s, owners = similarity(range(CLIPS))
    texts = [text for own in CAPTIONS for text in own]
    first = sorted({text: t for t, text in reversed(list(enumerate(texts)))}.values())
    assert len(first) < len(texts)

    def iou(a, b):
        return len(set(a) & set(b)) / len(set(a) | set(b))

    relevancy = np.array(
        [
            [(iou(verbs[v], verbs[owners[t]]) + iou(nouns[v], nouns[owners[t]])) / 2 for t in first]
            for v in range(CLIPS)
        ]
    )
    s = s[:, first]
    for way, sim, rel in (("v2t", s, relevancy), ("t2v", s.T, relevancy.T)):
        precisions, gains = [], []
        for q in range(len(sim)):
            order = sorted(range(sim.shape[1]), key=lambda c, q=q, sim=sim: -sim[q, c])
            hits, precision = 0, []
            for rank, c in enumerate(order, start=1):
                if rel[q, c] == 1:
                    hits += 1
                    precision.append(hits / rank)
            precisions.append(np.mean(precision))
            top = [rel[q, c] for c in order][: int((rel[q] > 0).sum())]
            dcg = sum(r / math.log2(1 + k) for k, r in enumerate(top, start=1))
            best = sorted(rel[q], reverse=True)
            gains.append(dcg / sum(r / math.log2(1 + k) for k, r in enumerate(best, start=1)))
        assert found[f"mir_binary_{way}_map"] == pytest.approx(np.mean(precisions), rel=1e-6)
        assert found[f"mir_graded_{way}_ndcg"] == pytest.approx(np.mean(gains), rel=1e-6)


def test_a_clip_without_verbs_leaves_mir_out():
    columns = {"verb": ["take"] * (CLIPS - 1) + [None], "noun": ["cup"] * CLIPS}
    found = run_retrieval(Task(), make_loader(columns=columns)).metrics
    assert "t2v_r1" in found and not any(name.startswith("mir") for name in found)


def test_a_clip_without_caption_is_named():
    captions = [*CAPTIONS[:-2], [], []]
    with pytest.raises(ConfigError, match=r"2 of 24 captions are empty, the first .* 's22'"):
        run_retrieval(Task(), make_loader(captions))
    with pytest.raises(ConfigError, match="24 of 24 captions are empty"):
        run_retrieval(Task(), make_loader([[]] * CLIPS))


def test_a_stop_is_obeyed_and_nothing_read_is_an_error():
    task = Task().train()
    assert run_retrieval(task, make_loader(), should_stop=lambda: True) is None and task.training
    everything = {(i, view) for i in range(CLIPS) for view in range(VIEWS)}
    with pytest.raises(MatineeError, match="none of 24 samples could be read"):
        run_retrieval(task, make_loader(invalid=everything))
    assert task.training
