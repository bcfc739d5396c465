"""Finding clips by a sentence: against a plain sort, and what is kept for the next time."""

import json
import os
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from matinee.cli import main
from matinee.errors import ConfigError, PackError
from matinee.inference import search as module
from matinee.inference.embed import embed
from matinee.inference.load import load_run
from matinee.inference.search import search
from matinee.pack.annotations import read_table
from matinee.pack.writing.index import index_videos

TEXT = "something red that drifts"


@pytest.fixture
def run(contrastive_run, tmp_path):
    """A copy, in which no vectors are kept yet."""
    shutil.copytree(contrastive_run, tmp_path / "run", ignore=shutil.ignore_patterns("*.npz"))
    return tmp_path / "run"


@pytest.fixture
def no_embedding(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("clips are embedded again")

    return lambda: monkeypatch.setattr(module, "clip_vectors", fail)


def test_hits_are_the_largest_dot_products_in_order(run, captions_pack):
    """Of the vectors that `embed` gives, in float64."""
    found = search(run, captions_pack, TEXT, top=4, workers=1, device="cpu")
    vectors = embed(run, workers=1, device="cpu")
    place = next(i for i, row in enumerate(vectors.rows) if row.text == TEXT)
    similarity = vectors.vectors[:6].astype(np.float64) @ vectors.vectors[place]
    order = np.argsort(-similarity)[:4]
    assert [hit.index for hit in found.hits] == order.tolist()
    assert [hit.rank for hit in found.hits] == [1, 2, 3, 4] and found.candidates == 6
    np.testing.assert_allclose([hit.similarity for hit in found.hits], similarity[order], atol=1e-5)
    first = next(hit for hit in found.hits if hit.index == order[0])
    assert first.texts == tuple(
        row.text for row in vectors.rows if row.kind == "text" and row.index == first.index
    )


def test_the_second_search_embeds_the_text_alone(run, captions_pack, no_embedding):
    said = []
    first = search(run, captions_pack, TEXT, workers=1, device="cpu", say=said.append)
    assert not first.kept and "6 clips kept in" in said[0]
    no_embedding()
    second = search(run, captions_pack, TEXT, device="cpu", say=said.append)
    assert second == replace(first, kept=True) and "6 clips from" in said[1]
    assert search(run, captions_pack, "another", device="cpu").kept


def test_vectors_of_other_weights_packs_or_samples_are_not_used(run, captions_pack, tmp_path):
    """Each change alone makes them anew."""
    search(run, captions_pack, TEXT, workers=1, device="cpu")
    assert not search(run, captions_pack, TEXT, split="val", workers=1, device="cpu").kept
    loaded = load_run(run, device="cpu")
    with torch.no_grad():
        loaded.task.model.video_projection[0, 0] += 1
    said = []
    assert not search(loaded, captions_pack, TEXT, workers=1, say=said.append).kept
    assert "other weights or another pack" in said[0]
    assert search(loaded, captions_pack, TEXT).kept
    with torch.no_grad():
        loaded.task.model.text_projection[0, 0] += 1
    assert search(loaded, captions_pack, TEXT).kept  # the text tower leaves clips alone
    other = tmp_path / captions_pack.name
    shutil.copytree(captions_pack, other)
    manifest = json.loads((other / "pack.json").read_text())
    (other / "pack.json").write_text(json.dumps(manifest | {"classes": ["x"]}))
    assert not search(loaded, other, TEXT, workers=1).kept


def test_a_damaged_file_of_vectors_is_made_anew_aloud(run, captions_pack):
    first = search(run, captions_pack, TEXT, workers=1, device="cpu")
    (file,) = run.glob("vectors-*.npz")
    file.write_bytes(file.read_bytes()[:-40])
    said = []
    again = search(run, captions_pack, TEXT, workers=1, device="cpu", say=said.append)
    assert "is damaged" in said[0] and again == first
    assert search(run, captions_pack, TEXT, device="cpu").kept


def test_vectors_without_all_clips_are_not_kept(run, film, tmp_path, captions_pack):
    """A film that is damaged after it was indexed is left out when asked to."""
    for i in range(2):
        film(tmp_path / f"{i}.mp4", frames=20, seed=i)
    (tmp_path / "t.csv").write_text("path,text\n0.mp4,one\n1.mp4,two\n")
    index_videos(tmp_path / "p", read_table(tmp_path / "t.csv", tmp_path))
    stat = (tmp_path / "1.mp4").stat()
    data = bytearray((tmp_path / "1.mp4").read_bytes())
    data[200:-1000] = bytes(len(data) - 1200)
    (tmp_path / "1.mp4").write_bytes(data)
    os.utime(tmp_path / "1.mp4", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    said = []
    found = search(
        run, tmp_path / "p", TEXT, workers=1, device="cpu", mask_errors=True, say=said.append
    )
    assert (found.candidates, found.skipped) == (1, 1) and "not kept" in said[0]
    assert not list(run.glob("vectors-*.npz"))


class Page(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def test_the_page_is_self_contained_and_shows_text_as_text(run, captions_pack, tmp_path, capsys):
    out = tmp_path / "found" / "page.html"
    text = 'a <script>alert("1")</script> & a square'
    args = ["search", text, str(captions_pack), "--run", str(run), "--out", str(out), "--workers",
            "1", "--top", "3", "--json", str(tmp_path / "f.json")]  # fmt: skip
    assert main(args) == 0
    said = capsys.readouterr()
    assert "3 of 6 clips" in said.out and "kept in" in said.err
    page = Page(out.read_text())
    scripts = [kept for tag, kept in page.tags if tag == "script"]
    assert [kept["type"] for kept in scripts] == ["application/json"]
    images = [kept for tag, kept in page.tags if tag == "img"]
    assert len(images) == 3 * 8
    assert all(kept["src"].startswith("data:image/jpeg;base64,") and kept["alt"] for kept in images)
    assert not any({"href", "onload"} & set(kept) for _, kept in page.tags)
    assert text in page.text
    found = json.loads((tmp_path / "f.json").read_text())
    assert [hit["rank"] for hit in found["hits"]] == [1, 2, 3]
    for hit in found["hits"]:
        shown = " · ".join(hit["texts"])
        assert shown in page.text and hit["sample"] in page.text and hit["texts"][0] in said.out


def test_a_text_beyond_the_context_is_cut_and_said(run, captions_pack, tmp_path, capsys):
    """At 77 tokens, of which two are marks: what comes later changes nothing."""
    long = "red " * 75
    found = search(run, captions_pack, long + "blue", workers=1, device="cpu")
    assert found.cut_to == 77
    same = search(run, captions_pack, long, device="cpu")
    assert same.cut_to is None and same.hits == found.hits
    args = ["search", long + "x", str(captions_pack), "--run", str(run), "--out"]
    assert main([*args, str(tmp_path / "page.html")]) == 0
    assert "longer than 77 tokens and was cut" in capsys.readouterr().err


def test_what_cannot_be_searched_is_refused(run, causal_run, captions_pack, tmp_path):
    for text in ("", " \n"):
        with pytest.raises(ConfigError, match="is empty: describe what to find"):
            search(run, captions_pack, text)
    with pytest.raises(ConfigError, match="top 0: at least 1"):
        search(run, captions_pack, TEXT, top=0)
    with pytest.raises(ConfigError, match="run of classification: finding clips by text needs"):
        search(causal_run, captions_pack, TEXT, device="cpu")
    with pytest.raises(PackError, match="is no pack"):
        search(run, tmp_path / "gone", TEXT, device="cpu")
    with pytest.raises(ConfigError, match="no sample with split 'tset'"):
        search(run, captions_pack, TEXT, split="tset", device="cpu")
