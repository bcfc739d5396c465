"""`matinee embed`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from matinee.cli.common import counting, out, parse
from matinee.evaluation.views import parse_views
from matinee.inference.embed import check_format, embed, write_embeddings


@dataclass(frozen=True)
class EmbedCommand:
    """Vectors of clips from any run: of contrastive ones unit vectors of clips and captions, of
    classification the pooled features, of a masked autoencoder the mean of its encoder's tokens.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    out: Path
    """vectors.parquet, a table (sample, index, kind clip or text, text, vector); or vectors.npy,
    float32 [N, D], with the other columns in vectors.json."""
    data: str | None = None
    """Another pack than the one the run was trained on."""
    split: str | None = None
    """Which samples: a split, or column=value[,value…]. Default: all."""
    views: str = "1x1"
    """TEMPORALxSPATIAL clips a sample whose vectors are averaged."""
    batch_size: int | None = None
    """Clips at a time. Default: the run's."""
    workers: int | None = None
    """Decoders. Default: the usable cores, at most 16."""
    on_error: Literal["raise", "mask"] = "raise"
    """A clip that cannot be read: stop, or leave the sample out and count it."""
    device: str = "auto"
    """auto: a GPU if there is one; cpu; cuda:1."""


def main(args: Sequence[str]) -> int:
    command = parse(EmbedCommand, args, "embed")
    check_format(command.out)
    with counting("embedding", "clips") as step:
        found = embed(
            command.run, data=command.data, split=command.split, views=parse_views(command.views),
            batch_size=command.batch_size, workers=command.workers,
            mask_errors=command.on_error == "mask", device=command.device, on_progress=step,
        )  # fmt: skip
    write_embeddings(command.out, found)
    texts = sum(row.kind == "text" for row in found.rows)
    about = found.about
    also = f" and {texts} captions ({about['cut']} cut to the context)" if texts else ""
    out.print(
        f"{command.out}: {len(found.rows) - texts} clips{also}, {found.vectors.shape[1]} numbers "
        f"each, {about['features']}; {about['skipped']} skipped"
    )
    return 0
