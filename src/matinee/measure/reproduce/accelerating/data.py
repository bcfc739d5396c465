"""The pictures of `reproduce accelerating`: an image set, made of a folder or an archive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matinee.errors import ConfigError
from matinee.measure.reproduce.accelerating.sizes import PIXELS, Size
from matinee.pack.images.image_set import MANIFEST, ImageSet
from matinee.pack.images.writer import write_images

NO_DATA = (
    "A folder or archive of pictures as train/CLASS/NAME.png and test/CLASS/NAME.png: "
    "`pip install cifar2png`, then `cifar2png cifar10 cifar10_png` and `cifar2png cifar100 "
    "cifar100_png` fetch the original sets (cs.toronto.edu/~kriz/cifar.html) and write them so."
)


def image_set(
    path: Path,
    out: Path,
    size: Size,
    classes: int,
    on_progress: Callable[[int, int], None],
) -> Path:
    """The image set to train on: `path` itself if it is one, else made of it at `out`, or found
    there.

    Raises:
        ConfigError: nothing there, another number of classes, no test pictures, or a whole image
            set where a part is wanted.
    """
    if not path.exists():
        raise ConfigError(f"{path}: nothing is there. {NO_DATA}")
    if (path / MANIFEST).exists():
        found = ImageSet(path)
        if size.pictures is not None and len(found) > 2 * size.pictures:
            raise ConfigError(
                f"{path} is an image set of {len(found):,} pictures, of which only all can be "
                "taken: give the folder or archive that it was made of, or --full"
            )
        out = path
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_images(
            out, path, size=PIXELS, limit=size.limit(classes),
            on_progress=on_progress,
        )  # fmt: skip
        found = ImageSet(out)
    if len(found.classes) != classes:
        raise ConfigError(f"{path} has {len(found.classes)} classes, where {classes} are expected")
    if not {"train", "test"} <= set(found.splits()) and "val" not in found.splits():
        raise ConfigError(f"{path} has no test pictures: expected folders train/ and test/")
    return out
