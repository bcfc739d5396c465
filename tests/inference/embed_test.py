"""Vectors of clips and captions against clips read and forwarded one by one."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from matinee.cli import main
from matinee.data.clips import View
from matinee.errors import ConfigError
from matinee.inference.embed import embed, write_embeddings
from matinee.inference.evaluate import evaluate
from matinee.inference.load import load_run
from matinee.pack.reading.reader import Pack


def test_contrastive_vectors_are_unit_means_over_views_and_captions_follow(
    contrastive_run, captions_pack, clip_of
):
    """Each view alone, then a float64 mean of length one; each caption alone."""
    found = embed(contrastive_run, views=(2, 1), workers=1, device="cpu")
    model = load_run(contrastive_run, device="cpu").task.model
    pack = Pack(captions_pack)
    assert [(row.kind, row.index) for row in found.rows] == [
        *(("clip", i) for i in range(6)),
        *(("text", i) for i in (0, 0, 1, 2, 3, 4, 5)),
    ]
    for row, vector in zip(found.rows, found.vectors, strict=True):
        assert row.sample == pack.info(row.index).id
        with torch.no_grad():
            if row.kind == "text":
                wanted = model.embed_text(model.text.tokenize([row.text]).ids)[0].double().numpy()
            else:
                views = [clip_of(contrastive_run, captions_pack, row.index, View(t, 2))
                         for t in range(2)]  # fmt: skip
                mean = torch.stack([model.embed_video(v)[0].double() for v in views]).mean(0)
                wanted = (mean / mean.norm()).numpy()
        np.testing.assert_allclose(vector, wanted, atol=1e-5)
    texts = [row.text for row in found.rows if row.kind == "text"]
    assert texts[:2] == ["a red square", "something red that drifts"]


def test_classification_vectors_are_what_the_classifier_sees(causal_run):
    """The classifier's own layer, applied to them, gives the evaluation's probabilities."""
    found = embed(causal_run, split="val", workers=1, device="cpu")
    report = evaluate(causal_run, split="val", workers=1, views=(1, 1), device="cpu")
    classifier = load_run(causal_run, device="cpu").task.model.backbone.get_classifier()
    with torch.no_grad():
        probabilities = classifier(torch.from_numpy(found.vectors)).softmax(1).numpy()
    assert [row.sample for row in found.rows] == [row["sample"] for row in report["predictions"]]
    assert {row.kind for row in found.rows} == {"clip"}
    wanted = [row["probability"] for row in report["predictions"]]
    np.testing.assert_allclose(probabilities.max(axis=1), wanted, atol=1e-5)


def test_a_masked_autoencoders_vectors_are_means_of_all_tokens(masked_run, clips_pack, clip_of):
    found = embed(masked_run, split="val", workers=1, device="cpu")
    model = load_run(masked_run, device="cpu").task.model
    row = found.rows[2]
    with torch.no_grad():
        tokens = model.encode(clip_of(masked_run, clips_pack, row.index))
    assert tokens.shape[1] == model.tokens
    np.testing.assert_allclose(found.vectors[2], tokens[0].mean(dim=0).numpy(), atol=1e-5)


def test_parquet_and_npy_hold_the_same(contrastive_run, tmp_path, capsys):
    """A column of fixed-size lists; an array with the other columns beside it."""
    run = str(contrastive_run)
    assert main(["embed", run, "--out", str(tmp_path / "v.parquet"), "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "6 clips and 7 captions (0 cut to the context), 8 numbers each" in said
    write_embeddings(tmp_path / "v.npy", embed(contrastive_run, workers=1))
    table = pq.read_table(tmp_path / "v.parquet")
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 8)
    array, beside = np.load(tmp_path / "v.npy"), json.loads((tmp_path / "v.json").read_text())
    assert array.dtype == np.float32 and beside["shape"] == [13, 8]
    np.testing.assert_array_equal(np.stack(table.column("vector").to_pylist()), array)
    for name in ("sample", "index", "kind", "text"):
        assert table.column(name).to_pylist() == beside[name]
    about = json.loads(table.schema.metadata[b"matinee"])
    assert about["step"] == beside["step"] == 2 and about["task"] == "contrastive"
    assert about["features"].startswith("unit vectors")


def test_bad_names_are_refused_before_anything_is_computed(tmp_path, capsys):
    for name, words in (("v.csv", ".parquet or .npy"), ("no/v.npy", "there is no folder")):
        assert main(["embed", "nowhere", "--out", str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(ConfigError, match="is no run"):
        embed(tmp_path)
