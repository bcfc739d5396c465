"""matinee's loader in a training loop of one's own: nothing else of matinee is used.

    python examples/loops/plain.py my.pack
    torchrun --nproc-per-node 2 examples/loops/plain.py my.pack     # each rank its share

Stopped with Ctrl-C, it goes on with --resume at the very batch where it was.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn

from matinee import ClipLoader, ClipSpec, Pack


def network(classes: int) -> nn.Module:
    """A small 3-D network; any module that takes [B, 3, T, H, W] would do."""
    return nn.Sequential(
        nn.Conv3d(3, 32, (3, 7, 7), stride=(1, 4, 4), padding=(1, 3, 3)), nn.ReLU(),
        nn.Conv3d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(64, classes),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pack", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--saved", type=Path, default=Path("plain.pt"))
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if world > 1:
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        torch.distributed.init_process_group()
    torch.manual_seed(0)

    pack = Pack(args.pack)
    model = network(len(pack.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    clip = ClipSpec(frames=8, sampling="dense", stride=2, size=112, flip="horizontal")
    with ClipLoader(
        pack, split="train", clip=clip, batch_size=args.batch_size, seed=0, device=device,
        rank=rank, world=world,
    ) as loader:  # fmt: skip
        if args.resume:
            saved = torch.load(args.saved, weights_only=True, map_location=device)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
        train = model
        if world > 1:
            train = nn.parallel.DistributedDataParallel(model)
        try:
            while loader.epoch < args.epochs:
                for batch in loader:  # to the end of the epoch
                    loss = nn.functional.cross_entropy(train(batch.video), batch.target)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                if rank == 0:
                    print(f"epoch {loader.epoch}: loss of its last batch {loss.item():.3f}")
        finally:
            if rank == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                }
                torch.save(state, args.saved)
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
