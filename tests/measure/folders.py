"""Run folders as training and evaluation leave them, with known numbers."""

import json
from pathlib import Path

import av
import numpy as np

from matinee.data.clips import ClipSpec
from matinee.models.config import Joint, ModelConfig
from matinee.tasks.build import build_task
from matinee.tasks.config import ClassificationConfig, ContrastiveConfig, MaskedConfig
from matinee.tasks.vocabulary import Vocabulary
from matinee.training.config import DataConfig, RunConfig, TrainConfig
from matinee.training.state.runfolder import RunFolder

HOSTILE = "<script>alert(1)</script>"
CLASSES = (HOSTILE, "jump $5_$6")
CAPTION = '</script><img src="http://evil.example/x.png" onerror="alert(2)">'


def write_video(path: Path, shade: int):
    """12 frames of 64x48 at 12 fps, as `ffmpeg -c:v libx264` would write them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=12)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for i in range(12):
            image = np.full((48, 64, 3), shade, np.uint8)
            image[:, 5 * i : 5 * i + 5] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def val_metrics(confusion):
    hits = [row[i] / sum(row) for i, row in enumerate(confusion)]
    return {
        "top1": sum(hits) / 2, "top5": 1.0, "macro_f1": 0.25,
        "per_class": dict(zip(CLASSES, hits, strict=True)), "confusion": confusion,
        "samples": 4, "skipped": 0,
    }  # fmt: skip


def write_run(path: Path, pack: Path, *, evaluated: bool):
    """A run of 2 epochs as `train` and `evaluate` leave it: 3 of 4 right at the end."""
    config = TrainConfig(data=DataConfig(path=str(pack)), run=RunConfig(out=str(path)))
    path.mkdir()
    (path / "config.json").write_text(config.to_json())
    (path / "environment.json").write_text(json.dumps({"torch": "2", "command": [CAPTION]}))
    rows = []
    for epoch, confusion in ((1, [[2, 0], [2, 0]]), (2, [[2, 0], [1, 1]])):
        spans = {"data_wait": 1.0, "forward": 2.0, "backward": 4.0, "optimizer": 0.5}
        rows += [
            {"kind": "train", "step": 10 * epoch, "epoch": float(epoch), "loss": 2.0 / epoch,
             "top1": 0.5, "lr": 0.01 / epoch, "clips": 80, "clips_per_s": 10.0, "masked": 0,
             "spans": spans if epoch == 1 else {**spans, "validate": 1.5}},
            {"kind": "val", "step": 10 * epoch, "epoch": epoch, **val_metrics(confusion)},
        ]  # fmt: skip
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if evaluated:
        predictions = [
            {"sample": f"val/{'ab'[i]}/{j}.mp4", "index": 4 + 2 * i + j, "label": name,
             "predicted": CLASSES[0] if (i, j) == (1, 0) else name, "probability": 0.625}
            for i, name in enumerate(CLASSES) for j in range(2)
        ]  # fmt: skip
        report = {
            "run": str(path), "step": 20, "data": str(pack), "split": "val", "views": "1x1",
            **val_metrics([[2, 0], [1, 1]]), "classes": CLASSES, "predictions": predictions,
        }  # fmt: skip
        (path / "eval-val-1x1.json").write_text(json.dumps(report))
    return path


def write_other(path: Path, pack: Path, task, *, train: dict, val: dict, evaluation=None, **more):
    """A run of any task with one row of either kind."""
    config = TrainConfig(
        data=DataConfig(path=str(pack)), run=RunConfig(out=str(path)), task=task, **more
    )
    path.mkdir()
    (path / "config.json").write_text(config.to_json())
    common = {"lr": 0.01, "clips": 8, "clips_per_s": 4.0, "masked": 0, "spans": {"forward": 1.0}}
    rows = [
        {"kind": "train", "step": 5, "epoch": 1.0, **common, **train},
        {"kind": "val", "step": 5, "epoch": 1, "split": "val", "views": "1x1", "samples": 4,
         "skipped": 0, **val},
    ]  # fmt: skip
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if evaluation is not None:
        report = {
            "run": str(path), "step": 5, "task": task.kind, "data": str(pack), "split": "val",
            "views": "1x1", "samples": 4, "skipped": 0, **val, "predictions": evaluation,
        }  # fmt: skip
        (path / "eval-val-1x1.json").write_text(json.dumps(report))
    return path


def write_retrieval(path: Path, pack: Path, ranks=None):
    """Four captions with their ranks; what is not first is taken for the first clip."""
    names = [f"val/{label}/{j}.mp4" for label in "ab" for j in range(2)]
    rows = [
        {"sample": name, "index": 4 + i, "text": f"caption {i}", "rank": rank, "similarity": 0.5,
         "nearest": name if rank == 1 else names[0]}
        for i, (name, rank) in enumerate(zip(names, ranks or (), strict=True))
    ] if ranks else None  # fmt: skip
    val = {"t2v_r1": 0.5, "t2v_r5": 1.0, "t2v_r10": 1.0, "t2v_median_rank": 1.5,
           "v2t_r1": 0.25, "v2t_r5": 1.0, "v2t_r10": 1.0, "v2t_median_rank": 2.0,
           "mir_graded_average_map": 0.456, "captions": 4, "cut": 1}  # fmt: skip
    return write_other(
        path, pack, ContrastiveConfig(), train={"loss": 2.0, "top1": 0.125, "cut": 0.25}, val=val,
        evaluation=rows,
    )  # fmt: skip


def write_masked(path: Path, pack: Path):
    """A masked autoencoder as it starts, with a checkpoint."""
    task = MaskedConfig(mask_ratio=0.5, decoder_depth=1, decoder_width=24, decoder_heads=2)
    model = ModelConfig(
        backbone="vit_tiny_patch16_224", temporal=Joint(tubelet=2, positions="sine"), patch_size=8
    )
    clip = ClipSpec(frames=4, size=32)
    write_other(
        path, pack, task, train={"loss": 1.25}, val={"loss": 0.987654}, evaluation=[], model=model,
        clip=clip,
    )  # fmt: skip
    nothing = Vocabulary(())
    built = build_task(task, model, frames=clip.frames, size=clip.size, vocabulary=nothing)
    RunFolder(path).save_checkpoint(
        {
            "state": {"model": built.task.model.state_dict(), "step": 5},
            "vocabulary": nothing.to_dict(),
        }
    )
    return path


def write_several(path: Path, pack: Path):
    """A run with several labels a clip."""
    rows = [
        {"sample": f"val/{label}/{j}.mp4", "index": 4 + i, "label": "run | jump",
         "predicted": ("jump", "sit")[j], "probability": 0.75}
        for i, (label, j) in enumerate((label, j) for label in "ab" for j in range(2))
    ]  # fmt: skip
    val = {"top1": 0.5, "map_macro": 0.321, "map_micro": 0.4, "class_ap": [0.5, 0.4, None],
           "classes": ["jump", "run", "sit"], "classes_without_positives": 1}  # fmt: skip
    return write_other(
        path, pack, ClassificationConfig(labels="multi"), train={"loss": 0.7, "top1": 0.5},
        val=val, evaluation=rows,
    )  # fmt: skip
