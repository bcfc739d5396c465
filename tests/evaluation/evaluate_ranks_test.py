"""Two and three processes with a share of the samples each measure what one process measures."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from torch import nn

from matinee.data.batch import Batch
from matinee.data.clips import ClipSpec
from matinee.data.epochs import EpochLoader
from matinee.errors import MatineeError
from matinee.evaluation import arrays
from matinee.evaluation.ranks import gather_rows, share
from matinee.evaluation.run import evaluate_task
from matinee.models.text import Tokens
from matinee.pack.reading.selection import SampleTable
from matinee.tasks.classification import ClassificationTask
from matinee.tasks.config import ClassificationConfig, ContrastiveConfig, MaskedConfig
from matinee.tasks.contrastive import ContrastiveTask
from matinee.tasks.masked import MaskedTask
from matinee.tasks.vocabulary import Vocabulary, make_targets, read_vocabulary

ROWS, WIDTH = 13, 6  # the rows 1 … 11 of the pack are evaluated: 11 on 2 or 3 ranks
SPLIT = "part=in"
UNREADABLE = {(4, 0), (7, 0), (7, 1), (7, 2), (7, 3)}  # row, view: one lacks a view, one all
WORLDS = (2, 3)
SKIPPED = {
    "single 1": 3, "single 4": 2, "logits 4": 2, "verb+noun 4": 2, "multi 4": 1, "retrieval 1": 2,
    "retrieval 4": 1, "official 4": 1, "masked 1": 2, "masked 4": 1, "few 4": 0,
}  # fmt: skip
"""Of each case: samples that cannot be read, and for labels those without one."""


def table() -> SampleTable:
    rng = np.random.default_rng(5)
    pack = SampleTable()
    pack.path, pack.classes = Path("some.pack"), ()
    verbs, nouns = ["cut", "take"], ["egg", "ham", "pan"]
    pairs = [(verbs[rng.integers(2)], nouns[rng.integers(3)]) for _ in range(ROWS)]
    names = ["a", "b", "c"]
    pack.samples = pa.table(
        {
            "sample": [f"s{row}" for row in range(ROWS)],
            "part": ["out", *["in"] * (ROWS - 2), "out"],
            "few": ["yes" if row in (3, 8) else "no" for row in range(ROWS)],
            "label": [" | ".join({names[k] for k in rng.integers(0, 3, 2)}) for _ in range(ROWS)],
            "one": [None if row == 9 else names[row % 3] for row in range(ROWS)],
            "verb": [verb for verb, _ in pairs],
            "noun": [None if row == 2 else noun for row, (_, noun) in enumerate(pairs)],
            "text": [f"and then also {row}\n{row % 5} is said" for row in range(ROWS)],
        }
    )
    return pack


class Memory(EpochLoader):
    """Clips of random numbers [C = 1, T = 1, H = 1, W = 6], some of which cannot be read."""

    def __init__(self, pack, views, *, targets=None, split=SPLIT, rank=0, world=1) -> None:
        super().__init__(
            pack, split=split, clip=ClipSpec(frames=1, size=32), batch_size=3, views=views,
            repeats=1, group=1, seed=3, classes=("a", "b", "c"), device="cpu",
            targets=np.full(ROWS, -1) if targets is None else targets, rank=rank, world=world,
        )  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        self.clips = torch.randn(ROWS, 4, 1, 1, 1, WIDTH, generator=generator)

    def _next(self) -> Batch:
        items = self._items(self.epoch, self.position)
        rows, views = self._rows(items), items % self._per_sample
        valid = [pair not in UNREADABLE for pair in zip(rows, views, strict=True)]
        return Batch(
            video=self.clips[rows, views],
            target=self._target(rows, [False] * len(rows)),
            valid=torch.tensor(valid),
            index=torch.from_numpy(rows),
            samples=tuple(f"s{row}" for row in rows),
            num_valid=sum(valid),
            texts=("",) * len(rows),
            seeds=self._seeds(self.epoch, items),
        )

    def close(self) -> None:
        pass


class Counted(nn.Module):
    """`calls`: how often it was asked."""

    calls = 0


class Classifier(Counted):
    def __init__(self, classes: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(WIDTH, classes)

    def forward(self, video):
        self.calls += 1
        return 3 * self.linear(video.flatten(1))


class Text(nn.Module):
    """A text is the sum of random vectors of its characters; over ten of them is too long."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(128, WIDTH)

    def tokenize(self, texts):
        ids = torch.zeros(len(texts), 10, dtype=torch.int64)
        for row, text in enumerate(texts):
            codes = [ord(c) for c in text][:10]
            ids[row, : len(codes)] = torch.tensor(codes)
        return Tokens(ids, self.count_cut(texts))

    def count_cut(self, texts):
        return sum(len(text) > 10 for text in texts)


class Towers(Counted):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.text, self.linear = Text(), nn.Linear(WIDTH, WIDTH)

    def embed_video(self, video):
        self.calls += 1
        return F.normalize(self.linear(video.flatten(1)), dim=1)

    def embed_text(self, ids):
        self.calls += 1
        return F.normalize(self.text.table(ids).sum(dim=1), dim=1)


class Autoencoder(Counted):
    """The error of a clip is that of its numbers, weighed by where its mask hides."""

    frames, tubelet = 4, 2

    class encoder:
        class patch_embed:
            num_patches, grid_size = 16, (4, 4)

    def forward(self, video, hidden, decoded):
        self.calls += 1
        weights = torch.arange(hidden.shape[1]) * hidden
        return video.flatten(1).square().sum(dim=1) * (1 + weights.sum(dim=1)), None


def measure(case: str, folder: Path, *, rank=0, world=1):
    """Metrics, predictions and how often the network was asked."""
    kind, number = case.split()
    views, pack = {"1": (1, 1), "4": (2, 2)}[number], table()
    targets, vocabulary, more = None, Vocabulary(()), {}
    split = "few=yes" if kind == "few" else SPLIT
    if kind in ("single", "logits", "verb+noun", "multi", "few"):
        labels = kind if kind in ("verb+noun", "multi") else "single"
        config = ClassificationConfig(labels=labels)
        if labels == "single":
            place = pack.samples.column_names.index("label")
            pack.samples = pack.samples.set_column(place, "label", pack.samples.column("one"))
        vocabulary = read_vocabulary(pack.samples, config)
        targets = make_targets(pack.samples, config, vocabulary, np.arange(ROWS))
        task = ClassificationTask(Classifier(len(vocabulary.classes)), config)
        more = {"average": "logits"} if kind == "logits" else {}
    elif kind == "masked":
        task = MaskedTask(Autoencoder(), MaskedConfig(mask_ratio=0.5))
    else:
        task = ContrastiveTask(Towers(), ContrastiveConfig())
        more = {"sentences": folder / "sentences.csv"} if kind == "official" else {}
    loader = Memory(pack, views, targets=targets, split=split, rank=rank, world=world)
    found = evaluate_task(task, loader, vocabulary, **more)
    return found.metrics, found.predictions, task.model.calls


def on_rank(rank: int, folder: Path) -> None:
    """One of several processes; the last leaves after the larger world."""
    torch.set_num_threads(1)
    for world in sorted(WORLDS, reverse=True):
        if rank >= world:
            continue
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/meet{world}", rank=rank, world_size=world
        )
        found = {case: measure(case, folder, rank=rank, world=world) for case in SKIPPED}
        found["errors"] = list(errors(rank, world))
        found["pieces"] = in_pieces(world)
        (folder / f"{world}-{rank}.json").write_text(json.dumps(found))
        dist.destroy_process_group()


def errors(rank: int, world: int):
    """What is raised where the ranks' shares, or rank 0's results, are not sound."""

    class Broken(Classifier):
        def forward(self, video):
            return super().forward(video) * (torch.nan if rank == world - 1 else 1)

    labels = np.arange(ROWS) % 3
    loader = Memory(table(), (1, 1), targets=labels, rank=rank, world=world)
    unlabelled = Memory(table(), (1, 1), rank=rank, world=world)
    attempts = (
        lambda: evaluate_task(ClassificationTask(Broken(3)), loader, Vocabulary(tuple("abc"))),
        lambda: evaluate_task(ClassificationTask(Broken(3)), unlabelled, Vocabulary(tuple("abc"))),
        lambda: gather_rows(np.arange(2 + rank), np.zeros((2 + rank, 3)), np.arange(4)),
    )  # fmt: skip
    for attempt in attempts:
        try:
            attempt()
            yield "nothing was raised"
        except MatineeError as error:
            yield str(error)


def in_pieces(world: int) -> bool:
    """Whether rows that travel two at a time come out as they are."""
    whole = np.arange(7 * world * 4, dtype=np.float32).reshape(7 * world, 4)
    rows, held = share(7 * world), arrays._CHUNK
    arrays._CHUNK = 9
    try:
        index, values = gather_rows(rows, whole[rows], np.arange(7 * world))
    finally:
        arrays._CHUNK = held
    return index.tolist() == list(range(7 * world)) and bool((values == whole).all())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made: Path = tmp_path_factory.mktemp("ranks")
    rows = [f"s{row},{text}" for row, text in ((3, "1 is said"), (10, "also 4"), (0, "new"))]
    (made / "sentences.csv").write_text("\n".join(["narration_id,narration", *rows, ""]))
    return made


@pytest.fixture(scope="module")
def alone(folder):
    return {case: measure(case, folder) for case in SKIPPED}


@pytest.fixture(scope="module")
def every_world(folder):
    """What each of several processes found, by their number."""
    spawned = torch.multiprocessing.spawn(on_rank, (folder,), nprocs=max(WORLDS), join=False)
    try:
        end = time.monotonic() + 120
        while not spawned.join(timeout=max(0.1, end - time.monotonic())):
            assert time.monotonic() < end, "the ranks wait for each other"
    finally:
        for process in spawned.processes:
            process.kill()
    return {
        world: [json.loads((folder / f"{world}-{rank}.json").read_text()) for rank in range(world)]
        for world in WORLDS
    }


@pytest.fixture(scope="module", params=WORLDS)
def ranks(request, every_world):
    return every_world[request.param]


def close_to(value):
    """Numbers up to the order of a sum in float32, all else as it is."""
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-5, abs=1e-7)
    if isinstance(value, dict):
        return {key: close_to(held) for key, held in value.items()}
    return [close_to(held) for held in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", SKIPPED)
def test_every_rank_has_the_metrics_of_one_process(ranks, alone, case):
    """Of 11 samples, or 2, one of which cannot be read and one only in part."""
    metrics, predictions, _ = alone[case]
    assert metrics["samples"] + metrics["skipped"] == (2 if case.startswith("few") else 11)
    assert metrics["skipped"] == SKIPPED[case]
    for number, held in enumerate(ranks):
        assert held[case][0] == close_to(metrics)
        assert held[case][1] == (close_to(predictions) if number == 0 else [])


def test_all_ranks_ask_the_network_equally_often(ranks, alone):
    """Else they would wait for each other for ever, where each call is a collective."""
    for case in SKIPPED:
        calls = {held[case][2] for held in ranks}
        assert len(calls) == 1 and calls < set(range(1, alone[case][2] + 1)), case


def test_masked_and_retrieval_metrics_are_not_trivial(alone):
    """What the comparison above is worth."""
    metrics = alone["retrieval 4"][0]
    assert 0 < metrics["t2v_r5"] < 1 and metrics["cut"] > 0 and metrics["repeated"] > 0
    assert metrics["mir_left_out"] == 1 and metrics["mir_source"] == "distinct captions"
    assert alone["official 4"][0]["mir_source"] == "sentences.csv"
    assert alone["masked 4"][0]["loss"] != alone["masked 1"][0]["loss"]


def test_errors_are_the_same_on_all_ranks(ranks):
    """Of what rank 0 alone measures, and of what all see."""
    for held in ranks:
        nan, unlabelled, shapes = held["errors"]
        assert nan.startswith("the network gives NaN for") and nan == ranks[0]["errors"][0]
        assert "9 could be read, and those have no label" in unlabelled
        assert shapes.startswith("ranks evaluated shares of different shapes: rank 0 (2, 3) float")


def test_large_arrays_travel_in_pieces(ranks):
    assert all(held["pieces"] for held in ranks)
