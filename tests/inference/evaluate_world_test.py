"""`evaluate` and `embed` in two processes, each reading half of the clips, against one process."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from matinee.inference.embed import embed
from matinee.inference.evaluate import evaluate

WORLD = 2
SETTINGS = {"workers": 1, "device": "cpu", "batch_size": 4}
NINE = {"split": "label=left", "views": (2, 1)}  # nine samples: one of them is read twice


def on_rank(rank, folder, classes, captions):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD
    )
    done = []
    reports = [
        evaluate(classes, **NINE, **SETTINGS, on_progress=lambda *clips: done.append(clips)),
        evaluate(captions, split="split=train,val", views=(1, 1), **SETTINGS),
    ]
    vectors = embed(captions, **SETTINGS).vectors
    (folder / f"{rank}.json").write_text(json.dumps([reports, done[-1], vectors.tolist()]))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(causal_run, contrastive_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    args = (folder, causal_run, contrastive_run)
    spawned = torch.multiprocessing.spawn(on_rank, args, nprocs=WORLD, join=False)
    try:
        end = time.monotonic() + 120
        while not spawned.join(timeout=max(0.1, end - time.monotonic())):
            assert time.monotonic() < end, "the ranks wait for each other"
    finally:
        for process in spawned.processes:
            process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]


def near(value):
    """Numbers up to the order of a sum in float32, all else as it is."""
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-5, abs=1e-7)
    if isinstance(value, dict):
        return {key: near(held) for key, held in value.items()}
    return [near(held) for held in value] if isinstance(value, list) else value


def test_reports_are_those_of_one_process(ranks, causal_run, contrastive_run):
    """On every rank, but for the predictions, which rank 0 alone has and writes."""
    files = [causal_run / "eval-label=left-2x1.json",
             contrastive_run / "eval-split=train,val-1x1.json"]  # fmt: skip
    written = [json.loads(file.read_text()) for file in files]
    alone = [
        evaluate(causal_run, **NINE, **SETTINGS),
        evaluate(contrastive_run, split="split=train,val", views=(1, 1), **SETTINGS),
    ]
    assert alone[0]["samples"] == 9 and len(alone[0]["predictions"]) == 9
    for reports, done, _ in ranks:
        assert done == [10, 10]
        for found, wanted in zip(reports, alone, strict=True):
            assert found.keys() == wanted.keys()
            for name in found.keys() - {"predictions"}:
                assert found[name] == near(wanted[name]), name
    assert written == ranks[0][0]
    assert [report["predictions"] for report in ranks[1][0]] == [[], []]
    for found, wanted in zip(written, alone, strict=True):
        for row, own in zip(found["predictions"], wanted["predictions"], strict=True):
            assert row == near(own)


def test_vectors_are_those_of_one_process(ranks, contrastive_run):
    """Of six clips and seven captions, on every rank."""
    wanted = embed(contrastive_run, **SETTINGS).vectors
    for _, _, vectors in ranks:
        np.testing.assert_allclose(np.array(vectors), wanted, rtol=1e-5, atol=1e-7)
