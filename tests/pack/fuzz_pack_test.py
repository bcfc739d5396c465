"""Mutated packs: PackError or ClipError, or the frames; never a crash, a hang, a wrong exception.

MATINEE_FUZZ=10000 sets how many of each kind.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from matinee.pack.profiles import make_profile
from matinee.pack.writing.index import index_videos
from matinee.pack.writing.writer import write_pack

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "media"))
from hostile import how_many, survive
from wild import annotate


@pytest.fixture(scope="module")
def folder(tmp_path_factory, film) -> Path:
    """A pack of two films in two chunks each, and an index of one of them."""
    root = tmp_path_factory.mktemp("packs")
    films = [film(root / f"{n}.mp4", frames=40, size=(32, 32), seed=n) for n in range(2)]
    profile = make_profile(preset="ultrafast", short_side=32, chunk_seconds=1)
    write_pack(root / "pack", annotate(*films), profile, workers=1)
    index_videos(root / "indexed" / "pack", annotate(*films))
    return root


@pytest.mark.parametrize(
    ("kind", "count"), [("manifests", 600), ("parquet", 500), ("shards", 300), ("pack files", 200)]
)
def test_mutated_packs_are_read_or_refused(kind, count, folder):
    """Each kind of file of a pack."""
    outcome = survive(kind, folder, how_many(count))
    assert outcome.accepted < outcome.run and outcome.peak_mb < 2000


def test_mutated_indexes_are_read_or_refused(folder):
    """An index points into originals with a file of tables."""
    outcome = survive("pack files", folder / "indexed", how_many(200))
    assert outcome.accepted < outcome.run
