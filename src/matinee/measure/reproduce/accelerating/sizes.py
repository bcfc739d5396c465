"""How large the runs of `reproduce accelerating` are: pictures, networks, epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from matinee.recipes.cifar import efficientnet_cifar, resnet50_cifar, vit_cifar
from matinee.tasks.config import ClassificationConfig
from matinee.training.config import TrainConfig

PIXELS = 32
NAMES = {
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "resnet50": "ResNet-50", "vit": "ViT",
    "efficientnet": "EfficientNet-B0",
}  # fmt: skip
RECIPES = {"resnet50": resnet50_cifar, "vit": vit_cifar, "efficientnet": efficientnet_cifar}


@dataclass(frozen=True)
class Size:
    """`pictures`: of training and as many of test, over all classes; None: all there are.

    `published`: networks and augmentation of the recipes as they are, else small ones.
    """

    name: str
    pictures: int | None
    epochs: int
    published: bool

    def limit(self, classes: int) -> int | None:
        """Pictures of each class and split."""
        return None if self.pictures is None else max(2, self.pictures // classes)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


BATCH = 64
SMALL = Size("small", 1000, 3, published=False)
QUICK = Size("quick", 160, 2, published=False)
FULL = Size("full", None, 30, published=True)


def about(size: Size, *, classes: Mapping[str, int], epochs: int) -> str:
    """What is trained, in words; `classes` of each data set, by its name."""
    if size.published:
        return (
            "All pictures at 32², with the networks of the recipes: ResNet-50 with a 3×3 stem, "
            "ViT-B/4, EfficientNet-B0 with a stem of stride 1, batches of 128, from scratch (the "
            f"paper's ViT and EfficientNet began with weights of ImageNet); {epochs} epochs."
        )
    pictures = " and ".join(
        f"{(size.limit(number) or 0) * number:,} ({name})" for name, number in classes.items()
    )
    return (
        f"Pictures of 32² in batches of {BATCH}, from scratch. So that a CPU is done in minutes, "
        "ResNet-50 has the stem of ImageNet (a 7×7 convolution of stride 2 and pooling: a "
        "fifteenth of the arithmetic of the 3×3 stem), the ViT is ViT-Ti/4 without Mixup, CutMix, "
        f"RandAugment and erasing, EfficientNet-B0 is the recipe's; {pictures} pictures of "
        f"training and as many of test, {epochs} epochs. Accuracies are those of networks that "
        "have hardly begun to learn: they show whether a lever does harm, not how good a network "
        "gets. --full trains the recipes' networks on all pictures."
    )


def network_config(network: str, size: Size, data: str) -> TrainConfig:
    """The recipe of a network at a size. Nothing is written to its `run.out`."""
    config = RECIPES[network](data, "unused")
    # Batches are copied, or pinned memory would have nothing to do.
    config = replace(config, data=replace(config.data, resident=False))
    if size.published:
        return config
    optim = replace(config.optim, batch_size=BATCH, min_lr=0.0)
    config = replace(config, optim=optim)
    if network == "resnet50":
        return replace(config, model=replace(config.model, small_input=False))
    if network == "vit":
        return replace(
            config,
            model=replace(config.model, backbone="vit_tiny_patch16_224", drop_path=0.0),
            task=ClassificationConfig(),
            clip=replace(config.clip, rand_augment=0, erasing=0.0),
        )
    return config
