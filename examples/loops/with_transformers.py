"""matinee's loader under the Trainer of Hugging Face (`pip install 'transformers[torch]'`).

    python examples/loops/with_transformers.py my.pack

The network is a VideoMAE classifier with random weights; any that takes `pixel_values`
[B, T, C, H, W] would do.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Trainer,
    TrainingArguments,
    VideoMAEConfig,
    VideoMAEForVideoClassification,
)

from matinee import ClipLoader, ClipSpec, Pack


class Batches:
    """The loader's batches as the dictionaries that the Trainer hands to a model."""

    def __init__(self, loader: ClipLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for batch in self.loader:
            yield {"pixel_values": batch.video.transpose(1, 2), "labels": batch.target}


class ClipTrainer(Trainer):
    """A Trainer whose training data comes from a pack."""

    def __init__(self, *args: Any, pack: Pack, clip: ClipSpec, **more: Any) -> None:
        super().__init__(*args, **more)
        self.pack, self.clip = pack, clip

    def get_train_dataloader(self) -> Batches:  # type: ignore[override]
        loader = ClipLoader(
            self.pack, split="train", clip=self.clip, batch_size=self.args.train_batch_size,
            seed=self.args.seed, device=self.args.device, rank=self.args.process_index,
            world=self.args.world_size,
        )  # fmt: skip
        return Batches(loader)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pack", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("transformers_run"))
    args = parser.parse_args()
    pack = Pack(args.pack)
    clip = ClipSpec(frames=8, sampling="dense", stride=2, size=64)
    config = VideoMAEConfig(
        image_size=64, patch_size=16, num_frames=8, tubelet_size=2, hidden_size=96,
        num_hidden_layers=4, num_attention_heads=3, intermediate_size=384,
        num_labels=len(pack.classes),
    )  # fmt: skip
    trainer = ClipTrainer(
        VideoMAEForVideoClassification(config),
        TrainingArguments(
            args.out,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=args.batch_size,
            learning_rate=1e-3,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            remove_unused_columns=False,
            disable_tqdm=True,
        ),
        pack=pack,
        clip=clip,
        # The Trainer wants to know a data set; only its length is asked for.
        train_dataset=pack.select("train"),
    )
    result = trainer.train()
    print(f"{result.global_step} steps, loss {result.training_loss:.3f}")


if __name__ == "__main__":
    main()
