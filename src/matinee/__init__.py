"""matinee: train large video models fast, on the machine you have.

    pack = matinee.Pack("my.pack")                       # a dataset on disk
    with matinee.ClipLoader(pack, split="train", batch_size=8) as loader:
        for batch in loader:                             # batch.video: float32 [B, 3, T, H, W]
            ...
    result = matinee.train(matinee.recipes.tsm(data="my.pack", out="runs/a"))

Names are imported on first use, so that `import matinee` costs nothing and a worker process that
only decodes never loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from matinee import recipes as recipes
    from matinee.data.batch import Batch as Batch
    from matinee.data.clips import ClipSpec as ClipSpec
    from matinee.data.loader import ClipLoader as ClipLoader
    from matinee.inference.egomcq import egomcq as egomcq
    from matinee.inference.embed import embed as embed
    from matinee.inference.evaluate import evaluate as evaluate
    from matinee.inference.export import export as export
    from matinee.inference.load import load_run as load_run
    from matinee.inference.predict import predict as predict
    from matinee.inference.search import search as search
    from matinee.inference.zero_shot import zero_shot as zero_shot
    from matinee.measure.diagnose.watch import Watch as Watch
    from matinee.pack.images.writer import write_images as write_images
    from matinee.pack.mixture import Mixture as Mixture
    from matinee.pack.open import open_data as open_data
    from matinee.pack.reading.reader import Pack as Pack
    from matinee.pack.writing.index import index_videos as index_videos
    from matinee.pack.writing.writer import write_pack as write_pack
    from matinee.pack.writing.writer import write_share as write_share
    from matinee.training.loop import train as train

_LAZY = {
    "Batch": "matinee.data.batch",
    "ClipLoader": "matinee.data.loader",
    "ClipSpec": "matinee.data.clips",
    "Mixture": "matinee.pack.mixture",
    "Pack": "matinee.pack.reading.reader",
    "Watch": "matinee.measure.diagnose.watch",
    "egomcq": "matinee.inference.egomcq",
    "embed": "matinee.inference.embed",
    "evaluate": "matinee.inference.evaluate",
    "export": "matinee.inference.export",
    "index_videos": "matinee.pack.writing.index",
    "load_run": "matinee.inference.load",
    "open_data": "matinee.pack.open",
    "predict": "matinee.inference.predict",
    "recipes": "",
    "search": "matinee.inference.search",
    "train": "matinee.training.loop",
    "write_images": "matinee.pack.images.writer",
    "write_pack": "matinee.pack.writing.writer",
    "write_share": "matinee.pack.writing.writer",
    "zero_shot": "matinee.inference.zero_shot",
}

__all__ = [
    "Batch",
    "ClipLoader",
    "ClipSpec",
    "Mixture",
    "Pack",
    "Watch",
    "egomcq",
    "embed",
    "evaluate",
    "export",
    "index_videos",
    "load_run",
    "open_data",
    "predict",
    "recipes",
    "search",
    "train",
    "write_images",
    "write_pack",
    "write_share",
    "zero_shot",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'matinee' has no attribute {name!r}")
    if not _LAZY[name]:
        return importlib.import_module(f"matinee.{name}")
    return getattr(importlib.import_module(_LAZY[name]), name)
