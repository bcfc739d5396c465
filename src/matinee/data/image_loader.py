"""`ImageLoader`: batches of an image set, whose images are uint8 and decoded already."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matinee.data.batch import Batch
from matinee.data.clips import ClipPlan, ClipSpec, View, check_crops
from matinee.data.device import IMAGENET_MEAN, IMAGENET_STD
from matinee.data.epochs import EpochLoader
from matinee.data.image_augment import (
    check_image_spec,
    plan_evaluation_image,
    plan_training_image,
    to_images,
)
from matinee.data.mix import take_turns
from matinee.data.random import generator
from matinee.data.transfer import send
from matinee.pack.images.image_set import ImageSet


class ImageLoader(EpochLoader):
    """Iterate over batches of images, as `ClipLoader` does over clips of one frame.

    On a GPU the selected images are copied there once, with the first batch, or each batch anew; on
    the CPU they stay mapped from their file. There are no workers, and no image can fail: all were
    decoded when the set was made.

    Args:
        pack: an open image set.
        clip: size, crop and augmentation; frames must be 1. None: the set's own size, padded crops.
        split, batch_size, views, repeats, crops, group, seed, classes, device, rank, world: as
            `ClipLoader` takes them; views are (1, spatial).
        targets: what `target` holds instead of the label: a row for each row of the set.
        resident: keep all selected images on a GPU, height × width × 3 bytes each; False: copy
            those of a batch, for sets that do not fit.
        pinned: copy batches from page-locked memory; no effect if `resident`.

    Raises:
        ConfigError: as `ClipLoader`, or a clip that no image can be.
    """

    workers = 0
    mode = "tensor"
    pack: ImageSet

    def __init__(
        self,
        pack: ImageSet,
        *,
        split: str | None = None,
        clip: ClipSpec | None = None,
        batch_size: int = 128,
        views: tuple[int, int] | None = None,
        repeats: int = 1,
        crops: int = 1,
        group: int = 1,
        seed: int = 0,
        classes: tuple[str, ...] | None = None,
        targets: NDArray[Any] | None = None,
        device: str | torch.device = "cpu",
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        rank: int = 0,
        world: int = 1,
        resident: bool = True,
        pinned: bool = True,
    ) -> None:
        clip = clip or ClipSpec(frames=1, size=pack.size[0], crop="pad")
        check_image_spec(clip, pack.size, views)
        check_crops(crops, views)
        super().__init__(
            pack, split=split, clip=clip, batch_size=batch_size, views=views, repeats=repeats,
            group=group, seed=seed, classes=classes, targets=targets, device=device, rank=rank,
            world=world, together=crops,
        )  # fmt: skip
        self._mean, self._std = mean, std
        self._resident, self._pinned = resident, pinned
        self._pixels: Tensor | None = None

    def plan(self, epoch: int, item: int) -> ClipPlan:
        """The look at an image that item number `item` (0 … num_items - 1) gets in an epoch."""
        sample = int(self.samples[item // self._per_sample])
        info = self.pack.info(sample)
        copy, crop = divmod(item % self._per_sample, self.together)
        if self.views is None:
            purpose = f"clip{copy}" if self.together == 1 else f"clip{copy}.{crop}"
            rng = generator(self.seed, epoch, sample, purpose)
            return plan_training_image(info, self.clip, rng)
        return plan_evaluation_image(info, self.clip, View(spatial=copy, of_spatial=self.views[1]))

    def _next(self) -> Batch:
        items = take_turns(self._items(self.epoch, self.position), self.together)
        plans = [self.plan(self.epoch, item) for item in items.tolist()]
        rows = self._rows(items)
        video = to_images(
            self._gather(items, rows), plans, size=self.clip.size, mean=self._mean, std=self._std
        )
        return Batch(
            video=video,
            target=self._target(rows, [plan.flip for plan in plans]),
            valid=torch.ones(len(plans), dtype=torch.bool, device=self.device),
            index=torch.from_numpy(rows),
            samples=tuple(plan.sample for plan in plans),
            num_valid=len(plans),
            texts=("",) * len(plans),
            seeds=self._seeds(self.epoch, items),
        )

    def _gather(self, items: NDArray[np.int64], rows: NDArray[np.int64]) -> Tensor:
        """uint8 [B, H, W, 3] on the device."""
        if self.device.type == "cpu" or not self._resident:
            chosen = torch.from_numpy(self.pack.pixels[rows])
            return send(chosen, self.device, pinned=self._pinned)
        if self._pixels is None:
            self._pixels = torch.from_numpy(self.pack.pixels[self.samples]).to(self.device)
        return self._pixels[send(torch.from_numpy(items // self._per_sample), self.device)]

    def close(self) -> None:
        """Free the images on the device; iterating again copies them anew."""
        self._pixels = None
