"""A small captioned pack for reports."""

from dataclasses import replace

import pytest
from folders import CAPTION, CLASSES, write_video

from matinee.pack.annotations import read_class_folders
from matinee.pack.profiles import make_profile
from matinee.pack.writing.writer import write_pack


@pytest.fixture(scope="session")
def pack(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for split in ("train", "val"):
        for i in range(2):
            for j in range(2):
                write_video(root / "videos" / split / "ab"[i] / f"{j}.mp4", 60 + 80 * i)
    annotations = read_class_folders(root / "videos")
    label = dict(zip("ab", CLASSES, strict=True))  # folders can't be called so, table rows can
    samples = tuple(
        replace(sample, label=label[sample.label], text=CAPTION) for sample in annotations.samples
    )
    write_pack(root / "p.pack", replace(annotations, samples=samples), make_profile(), workers=1)
    return root / "p.pack"
