"""What `matinee eval` refuses before it reads a clip, and what it says of MIR."""

from __future__ import annotations

import csv
import json

import pytest

from matinee.cli import main
from matinee.pack.annotations import read_table
from matinee.pack.writing.index import index_videos


@pytest.fixture(scope="module")
def verbs_pack(film, tmp_path_factory):
    """Four clips with captions, narration ids, verbs and nouns, one without a noun."""
    root = tmp_path_factory.mktemp("verbs")
    with (root / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "split", "text", "verb", "noun", "narration_id"])
        for i, (verb, noun) in enumerate(
            [("take", "cup"), ("cut", "ham"), ("take", ""), ("put", "cup | pan")]
        ):
            film(root / f"{i}.mp4", frames=20, size=(64, 48), seed=i)
            rows.writerow([f"{i}.mp4", "val", f"{verb} {noun}".strip(), verb, noun, f"P01_{i}"])
    index_videos(root / "verbs.pack", read_table(root / "labels.csv", root))
    (root / "sentences.csv").write_text(
        "narration_id,narration\nP01_0,take a cup\nP01_1,cut ham\nP01_3,put them down\n"
    )
    return root / "verbs.pack"


def run(capsys, *args):
    """Status, what it printed, and what it complained about."""
    status = main(["eval", *map(str, args), "--workers", "1", "--device", "cpu"])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_mir_says_which_sentences_and_how_many_clips_took_part(contrastive_run, verbs_pack, capsys):
    args = (contrastive_run, "--data", verbs_pack, "--split", "val")
    status, said, _ = run(capsys, *args)
    assert status == 0
    assert "EK-100 MIR leaves out 1 clips without a verb or a noun; 3 take part" in said
    assert "MIR over 3 sentences: distinct captions" in said
    table = verbs_pack.parent / "sentences.csv"
    status, said, _ = run(capsys, *args, "--sentences", table)
    assert status == 0 and "MIR over 3 sentences: sentences.csv" in said
    plain, official = (
        json.loads((contrastive_run / f"eval-verbs.pack-val-1x1{end}.json").read_text())
        for end in ("", "-sentences")
    )
    assert plain["mir_source"] == "distinct captions" and plain["mir_left_out"] == 1
    assert official["mir_source"] == "sentences.csv" and official["t2v_r1"] == plain["t2v_r1"]


def test_flags_without_effect_are_refused(contrastive_run, masked_run, causal_run, capsys):
    """One line each, whichever the task."""
    table = causal_run / "config.json"
    for args, words in (
        ([contrastive_run, "--average", "logits"], "--average logits is for classification"),
        ([masked_run, "--average", "logits"], "--average logits is for classification"),
        ([causal_run, "--sentences", table], "--sentences is for retrieval"),
        ([contrastive_run, "--zero-shot", "--average", "logits"], "has no effect with --zero-shot"),
        ([contrastive_run, "--egomcq", table, "--average", "logits"], "no effect with --egomcq"),
        ([contrastive_run, "--zero-shot", "--sentences", table], "--sentences has no effect with"),
        ([contrastive_run, "--zero-shot", "--egomcq", table], "two evaluations: ask for one"),
        ([contrastive_run, "--egomcq", table], "--egomcq needs the pack of its clips"),
        ([contrastive_run, "--sentences", table], "has no columns verb and noun"),
    ):
        status, _, complaint = run(capsys, *args)
        assert status == 2 and words in complaint, complaint


def test_a_pack_without_captions_is_refused_at_once(contrastive_run, clips_pack, capsys):
    """A retrieval needs what to look for."""
    status, _, complaint = run(capsys, contrastive_run, "--data", clips_pack)
    assert status == 2 and complaint.count("\n") == 1
    assert "6 of 6 samples to evaluate have no caption (column 'text')" in complaint
