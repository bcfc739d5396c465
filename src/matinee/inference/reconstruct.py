"""Pictures of what a masked autoencoder makes of clips it sees a part of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matinee.data.batch import Batch
from matinee.data.open_loader import open_loader
from matinee.data.sampling import uniform_segments
from matinee.errors import ConfigError, MatineeError
from matinee.inference.load import LoadedRun, load_run
from matinee.models.masked import MaskedAutoencoder
from matinee.models.patches import patchify, unpatchify
from matinee.pack.open import open_data
from matinee.tasks.masked import MaskedTask
from matinee.training.setup import choose_splits

_GREY = 0.5


@dataclass(frozen=True)
class Reconstruction:
    """A clip as it is, as the encoder sees it, and with its hidden patches drawn by the decoder.

    All uint8 RGB [T, H, W, 3]. `split` says which samples it is one of.
    """

    sample: str
    split: str | None
    original_THWC: NDArray[np.uint8]
    masked_THWC: NDArray[np.uint8]
    drawn_THWC: NDArray[np.uint8]


def reconstruct(
    run: str | Path | LoadedRun,
    *,
    count: int = 4,
    split: str | None = None,
    device: str = "auto",
) -> list[Reconstruction]:
    """Up to `count` clips, spread evenly over a split, with the masks they have in evaluation.

    With normalised targets a drawn patch has the true one's mean and deviation: the picture shows
    structure, not brightness. Clips that cannot be read are left out.

    Args:
        split: as `Pack.select` takes it; when None the run's validation split, or without one the
            samples it was trained on.

    Raises:
        ConfigError: no such run, pack or split, or a run of another task.
        MatineeError: no checkpoint yet, or not one clip could be read.
    """
    if count < 1:
        raise ConfigError(f"count={count}: at least one picture")
    loaded = run if isinstance(run, LoadedRun) else load_run(run, device=device)
    task, config = loaded.task, loaded.config
    if not isinstance(task, MaskedTask):
        raise ConfigError(
            f"{loaded.folder.path} is a run of {task.kind}: only a masked autoencoder reconstructs"
        )
    pack = open_data(config.data.path)
    if split is None:
        splits = choose_splits(pack, config)
        split = splits.val or splits.train
    with open_loader(
        pack, split=split, clip=config.clip, views=(1, 1), seed=config.run.seed, batch_size=1,
        workers=1, mode="threads", on_error="mask", device=loaded.device,
        mean=loaded.normalisation.mean, std=loaded.normalisation.std,
    ) as loader:  # fmt: skip
        shown = []
        for item in np.unique(uniform_segments(loader.num_items, count)).tolist():
            loader.load_state_dict(loader.state_dict() | {"epoch": 0, "taken": item})
            batch = next(iter(loader))
            if batch.num_valid:
                shown.append(_picture(task, batch, split))
        if not shown:
            raise MatineeError(f"no clip could be read: {loader.failed[-1]}")
    return shown


def _picture(task: MaskedTask, batch: Batch, split: str | None) -> Reconstruction:
    model = task.model
    hidden_BN, _ = task.masks(batch.seeds, batch.video.device)
    original, drawn = (
        _rgb(model, video) for video in (batch.video, model.reconstruct(batch.video, hidden_BN))
    )
    patches = patchify(original, model.tubelet, model.patch)
    covered = patches.masked_fill(hidden_BN[:, :, None, None], _GREY)
    size = (original.shape[3], original.shape[4])
    masked = unpatchify(covered, model.tubelet, model.patch, size)
    return Reconstruction(
        batch.samples[0], split, *(_picture_bytes(video) for video in (original, masked, drawn))
    )


def _rgb(model: MaskedAutoencoder, video_BCTHW: Tensor) -> Tensor:
    """Normalised pixels to 0–1."""
    shape = (1, 3, 1, 1, 1)
    return video_BCTHW.float() * model.std.view(shape) + model.mean.view(shape)


def _picture_bytes(video_1CTHW: Tensor) -> NDArray[np.uint8]:
    """RGB in 0–1 [1, 3, T, H, W] to uint8 [T, H, W, 3]."""
    rounded = (video_1CTHW[0].permute(1, 2, 3, 0) * 255).round().clamp(0, 255)
    pixels: NDArray[np.uint8] = rounded.to(torch.uint8).cpu().numpy()
    return pixels
