"""Small searches for tests: their config, and trials that train nothing."""

from matinee.data.clips import ClipSpec
from matinee.models.config import ModelConfig
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from matinee.training.loop import TrainResult

LR = ["optim.lr=1e-3..1e-1:log"]


def config(pack, out, **optim) -> TrainConfig:
    settings = {"batch_size": 4, "epochs": 2, "lr": 0.01, "warmup_epochs": 0} | optim
    return TrainConfig(
        data=DataConfig(path=str(pack), workers=1, mode="threads"),
        run=RunConfig(out=str(out), seed=3, device="cpu", log_every=100),
        model=ModelConfig("test_resnet", dropout=0.0),
        clip=ClipSpec(frames=2, size=32),
        optim=OptimConfig(**settings),
    )


class Lying:
    """Trains nothing: a score that follows from the rate, over `epochs` validations."""

    def __init__(self, score, metric="top1", epochs=2):
        self.score, self.metric, self.epochs, self.calls = score, metric, epochs, []

    def __call__(self, made, *, resume, progress):
        self.calls.append(made)
        progress.start(total=1, facts=["told"], headline=self.metric, epochs=self.epochs)
        with progress:
            for epoch in range(1, self.epochs + 1):
                value = self.score(made, epoch)
                progress.validated({"epoch": epoch, self.metric: value})
        return TrainResult(made.run.out, 1, self.epochs, {self.metric: value}, 0.1, 0, "")
