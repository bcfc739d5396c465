"""Run folders as training and evaluation leave them, with known numbers."""

import json
from pathlib import Path

import av
import numpy as np

from matinee.recipes import tsm

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
    config = tsm(str(pack), str(path))
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
