"""EgoMCQ with a run, against a loop over its own vectors."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from matinee.errors import ClipError, ConfigError
from matinee.inference.egomcq import egomcq
from matinee.inference.load import load_run
from matinee.pack.annotations import read_table
from matinee.pack.profiles import make_profile
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.writer import write_pack

pytest.importorskip("open_clip")


@pytest.fixture(scope="module")
def questions(film, tmp_path_factory):
    """A pack of ten clips of two videos and two that nobody asks for, a run of no training to speak
    of, and three questions."""
    from matinee.data.clips import ClipSpec
    from matinee.models.config import Frames, ModelConfig
    from matinee.tasks.config import ClipTextConfig, ContrastiveConfig
    from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
    from matinee.training.loop import train

    root = tmp_path_factory.mktemp("mcq")
    clips = [(f"v{v}", i * 0.8, (i + 1) * 0.8) for v in range(2) for i in range(5)]
    for v in range(2):
        film(root / f"v{v}.mp4", frames=100, seed=v)
    with (root / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "start", "end", "text", "split"])
        rows.writerow(["v0.mp4", 0.3, 1.9, "between", "other"])
        rows.writerows([f"{v}.mp4", a, b, f"clip {a:.1f} of {v}", "train"] for v, a, b in clips)
        rows.writerow(["v1.mp4", 0.3, 1.9, "between", "other"])
    write_pack(root / "mcq.pack", read_table(root / "labels.csv", root), make_profile("layered"))
    config = TrainConfig(
        data=DataConfig(path=str(root / "mcq.pack"), workers=1, mode="threads"),
        run=RunConfig(out=str(root / "run")),
        model=ModelConfig(backbone="resnet10t", temporal=Frames(), dropout=0.0),
        task=ContrastiveConfig(text=ClipTextConfig(width=32, heads=2, layers=1), embed_dim=8),
        clip=ClipSpec(frames=2, size=32),
        optim=OptimConfig(batch_size=5, epochs=1),
    )
    train(config)

    def choice(clip):
        return {"video_uid": clip[0], "clip_start": clip[1], "clip_end": clip[2]}

    mixed = [clips[i] for i in (0, 6, 2, 8, 4)]
    content = {
        str(n): {
            "query": {"clip_text": f"words {n}"},
            "choices": {str(i): choice(c) for i, c in enumerate(candidates)},
            "answer": answer,
            "types": kind,
        }
        for n, (candidates, answer, kind) in enumerate(
            [(clips[:5], 1, 2), (clips[5:], 4, 2), (mixed, 0, 1)]
        )
    }
    (root / "egomcq.json").write_text(json.dumps(content))
    return root


def test_answers_are_those_of_the_runs_own_vectors(questions):
    """Every clip read and embedded alone, every text alone."""
    from matinee.data.clips import View, plan_evaluation_clip
    from matinee.data.device import to_video
    from matinee.media.color import ycbcr_to_rgb

    done = []
    found = egomcq(
        questions / "run", questions / "egomcq.json", questions / "mcq.pack", workers=1,
        on_progress=lambda *clips: done.append(clips),
    )  # fmt: skip
    assert done[-1] == (10, 10)  # those that are asked for, each once
    loaded, pack = load_run(questions / "run"), Pack(questions / "mcq.pack")
    vectors = []
    for row in range(1, 11):
        info = pack.info(row)
        plan = plan_evaluation_clip(info, loaded.config.clip, View())
        frames = [f - info.first_frame for f in plan.frames]
        i420 = pack.read(row, frames, size=(32, 32), box=plan.box, pixels="i420")
        fmt = pack.formats[info.codec]
        affine = torch.tensor(ycbcr_to_rgb(fmt.matrix, fmt.full_range)[None]).float()
        video = to_video(
            torch.from_numpy(i420)[None], affine, None, size=(32, 32),
            mean=loaded.normalisation.mean, std=loaded.normalisation.std,
        )  # fmt: skip
        with torch.no_grad():
            vectors.append(loaded.task.model.embed_video(video)[0].numpy())
    rows = [range(5), range(5, 10), (0, 6, 2, 8, 4)]
    right = []
    for n, (candidates, answer) in enumerate(zip(rows, (1, 4, 0), strict=True)):
        ids = loaded.task.model.text.tokenize([f"words {n}"]).ids
        with torch.no_grad():
            text = loaded.task.model.embed_text(ids)[0].numpy()
        right.append(int(np.argmax([vectors[c] @ text for c in candidates])) == answer)
    assert found["intra_video"] == (right[0] + right[1]) / 2 and found["intra_questions"] == 2
    assert found["inter_video"] == float(right[2]) and found["inter_questions"] == 1
    assert (found["skipped"], found["left_out"], found["views"]) == (0, 0, "1x1")
    saved = json.loads((questions / "run" / "egomcq-mcq.pack-1x1.json").read_text())
    assert saved == found


def test_clips_the_pack_lacks_are_named(questions, tmp_path):
    """With how many and the first."""
    content = json.loads((questions / "egomcq.json").read_text())
    content["1"]["choices"]["2"]["clip_start"] = 1.7
    (tmp_path / "q.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"lacks 1 of 15 clips .* v1 from 1\.7 to"):
        egomcq(questions / "run", tmp_path / "q.json", questions / "mcq.pack")


def test_clips_are_looked_for_in_the_split(questions):
    run, file, pack = questions / "run", questions / "egomcq.json", questions / "mcq.pack"
    found = egomcq(run, file, pack, split="train", workers=1)
    assert found["split"] == "train" and (run / "egomcq-mcq.pack-train-1x1.json").exists()
    with pytest.raises(ConfigError, match=r"lacks in --split other 15 of 15 clips"):
        egomcq(run, file, pack, split="other")


def test_questions_with_a_clip_that_cannot_be_read_are_left_out_and_counted(questions, tmp_path):
    """All clips of one of the videos: two questions of three have one of them."""
    shutil.copytree(questions / "mcq.pack", tmp_path / "p")
    pack = Pack(tmp_path / "p")
    for frame in range(pack.info(11).num_frames):
        chunk = pack.locate(pack.info(11).video, [frame])[0].chunk
        with Path(chunk.file).open("r+b") as file:
            file.seek(chunk.offset + 48)
            file.write(np.random.default_rng(0).bytes(chunk.size - 1200))
    run, file = questions / "run", questions / "egomcq.json"
    with pytest.raises(ClipError):
        egomcq(run, file, tmp_path / "p", workers=1)
    found = egomcq(run, file, tmp_path / "p", workers=1, mask_errors=True)
    assert (found["skipped"], found["left_out"]) == (5, 2)
    sound = egomcq(run, file, questions / "mcq.pack", workers=1)
    content = json.loads(file.read_text())
    (tmp_path / "one.json").write_text(json.dumps({"0": content["0"]}))
    alone = egomcq(run, tmp_path / "one.json", questions / "mcq.pack", workers=1)
    for name in ("intra_video", "intra_questions", "inter_video", "inter_questions"):
        assert found[name] == alone[name]
    assert sound["intra_questions"] == 2 and found["intra_questions"] == 1
