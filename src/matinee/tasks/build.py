"""From configs to a task with its network."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from matinee.errors import ConfigError
from matinee.models.base import Normalisation
from matinee.models.build import build_encoder, build_video_model
from matinee.models.config import Joint, ModelConfig
from matinee.models.dual import DualEncoder
from matinee.models.masked import MaskedAutoencoder
from matinee.models.text import ClipText, SentenceText, TextTower
from matinee.models.weights import load_into
from matinee.tasks.base import Task
from matinee.tasks.classification import ClassificationTask
from matinee.tasks.config import (
    ClassificationConfig,
    ClipTextConfig,
    ContrastiveConfig,
    MaskedConfig,
    SentenceTextConfig,
    TaskConfig,
)
from matinee.tasks.contrastive import ContrastiveTask
from matinee.tasks.masked import MaskedTask
from matinee.tasks.vocabulary import Vocabulary


@dataclass(frozen=True)
class Built:
    """A task on the CPU, the input normalisation of its network, and sentences about it."""

    task: Task
    normalisation: Normalisation
    notes: tuple[str, ...]


def build_task(
    config: TaskConfig,
    model: ModelConfig,
    *,
    frames: int,
    size: int,
    vocabulary: Vocabulary,
) -> Built:
    """Build a task for clips of `frames` frames of `size` pixels.

    Raises:
        ConfigError: settings that do not fit each other, or weights that do not fit the network.
        MissingExtra: a package is not installed.
    """
    if isinstance(config, ClassificationConfig):
        network, normalisation, note = build_video_model(
            model, num_classes=len(vocabulary.classes), frames=frames, size=size
        )
        return Built(ClassificationTask(network, config), normalisation, (note,))
    if isinstance(config, MaskedConfig):
        return _masked(config, model, frames=frames, size=size)
    return _contrastive(config, model, frames=frames, size=size, vocabulary=vocabulary)


def _masked(config: MaskedConfig, model: ModelConfig, *, frames: int, size: int) -> Built:
    encoder, normalisation = build_encoder(model, size=size)
    assert isinstance(model.temporal, Joint)
    network = MaskedAutoencoder(
        encoder, frames=frames, mean=normalisation.mean, std=normalisation.std,
        tubelet=model.temporal.tubelet,
        decoder_depth=config.decoder_depth, decoder_width=config.decoder_width,
        decoder_heads=config.decoder_heads, normalise_targets=config.normalise_targets,
    )  # fmt: skip
    task = MaskedTask(network, config)
    hidden, patches = task.hidden_patches()
    note = f"{model.backbone}, masked autoencoder, {hidden} of a frame's {patches} patches hidden"
    return Built(task, normalisation, (note, _load(network, model)))


def _contrastive(
    config: ContrastiveConfig,
    model: ModelConfig,
    *,
    frames: int,
    size: int,
    vocabulary: Vocabulary,
) -> Built:
    fetched = "timm" if model.pretrained == "timm" else "none"
    plain = replace(model, pretrained=fetched, dropout=0.0)  # it belongs to a classifier
    video, normalisation, note = build_video_model(plain, num_classes=0, frames=frames, size=size)
    match config.text:
        case ClipTextConfig() as clip:
            text: TextTower = ClipText(
                width=clip.width, heads=clip.heads, layers=clip.layers, quick_gelu=clip.quick_gelu
            )
            about = f"text: CLIP's transformer, {clip.layers} layers of {clip.width}"
        case SentenceTextConfig() as sentence:
            text = SentenceText(sentence.folder)
            about = f"text: the sentence encoder in {sentence.folder}, as it is"
    network = DualEncoder(
        video, text, embed_dim=config.embed_dim, temperature=config.temperature,
        learn_temperature=config.learn_temperature and config.loss == "info-nce",
    )  # fmt: skip
    task = ContrastiveTask(network, config, verbs=len(vocabulary.verbs))
    loaded = () if model.pretrained in ("none", "timm") else (_load(network, model),)
    return Built(task, normalisation, (note, about, *loaded))


def _load(network: nn.Module, model: ModelConfig) -> str:
    if model.pretrained == "none":
        return "weights from scratch"
    if model.pretrained == "timm":
        raise ConfigError(
            "--model.pretrained timm: its networks do not fit a masked autoencoder; give a file"
        )
    return load_into(network, model.pretrained).sentence(model.pretrained)
