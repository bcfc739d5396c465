"""matinee's loader under Lightning (`pip install lightning`).

    python examples/loops/with_lightning.py my.pack

The position of the data is saved in Lightning's checkpoints and restored from them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn

from matinee import ClipLoader, ClipSpec, Pack
from matinee.data.batch import Batch


class Clips(lightning.LightningDataModule):
    """Batches arrive on the device of the rank; each rank reads its share."""

    def __init__(self, pack: Pack, batch_size: int) -> None:
        super().__init__()
        self.pack, self.batch_size = pack, batch_size
        self.clip = ClipSpec(frames=8, sampling="dense", stride=2, size=112)
        self.loader: ClipLoader | None = None
        self._saved: dict[str, Any] | None = None

    def train_dataloader(self) -> ClipLoader:
        trainer = self.trainer
        assert trainer is not None
        self.loader = ClipLoader(
            self.pack, split="train", clip=self.clip, batch_size=self.batch_size, seed=0,
            device=trainer.strategy.root_device, rank=trainer.global_rank, world=trainer.world_size,
        )  # fmt: skip
        if self._saved is not None:
            self.loader.load_state_dict(self._saved)
        return self.loader

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        return batch  # it is there already

    def state_dict(self) -> dict[str, Any]:
        return {"loader": self.loader.state_dict() if self.loader else None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict["loader"]

    def teardown(self, stage: str) -> None:
        if self.loader is not None:
            self.loader.close()


class Classifier(lightning.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv3d(3, 32, (3, 7, 7), stride=(1, 4, 4), padding=(1, 3, 3)), nn.ReLU(),
            nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, classes),
        )  # fmt: skip

    def training_step(self, batch: Batch, number: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.network(batch.video), batch.target)
        self.log("loss", loss, prog_bar=True, batch_size=len(batch))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pack", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("lightning_run"))
    args = parser.parse_args()
    pack = Pack(args.pack)
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        default_root_dir=args.out,
        log_every_n_steps=1,
        logger=False,
        use_distributed_sampler=False,  # the loader shards by itself
    )
    trainer.fit(Classifier(len(pack.classes)), datamodule=Clips(pack, args.batch_size))
    print(f"{trainer.global_step} steps, loss {trainer.callback_metrics['loss']:.3f}")


if __name__ == "__main__":
    main()
