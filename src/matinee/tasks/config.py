"""What is learned, and how. Each task owns its settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from matinee.errors import ConfigError


@dataclass(frozen=True)
class ClassificationConfig:
    """Name the class of a clip."""

    kind: ClassVar[str] = "classification"
    labels: Literal["single", "multi", "verb+noun"] = "single"
    """single: column `label`; multi: several in `label`, separated by `|`; verb+noun: classes are
    the pairs of columns `verb` and `noun`, whose own scores are sums over pairs."""
    label_smoothing: float = 0.0
    mixup: float = 0.0
    """Blend each clip with its neighbour in the batch; weights from Beta(a, a) (arXiv 1710.09412);
    0 for none. Micro-batches must be even."""
    cutmix: float = 0.0
    """Paste a box of another clip into all frames; area from Beta(a, a) (arXiv 1905.04899). With
    both, each pair of neighbours takes one of them."""
    mix_probability: float = 1.0
    """That a pair of neighbours is mixed."""
    cutmix_share: float = 0.5
    """With both, how often a pair takes CutMix."""

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"--task.label-smoothing {self.label_smoothing}: in [0, 1)")
        for name in ("mixup", "cutmix"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"--task.{name} {getattr(self, name)}: 0 or more")
        for name in ("mix_probability", "cutmix_share"):
            if not 0 <= getattr(self, name) <= 1:
                flag = name.replace("_", "-")
                raise ConfigError(f"--task.{flag} {getattr(self, name)}: between 0 and 1")


@dataclass(frozen=True)
class ClipTextConfig:
    """CLIP's text transformer and tokenizer (arXiv 2103.00020), from open_clip."""

    kind: ClassVar[str] = "clip"
    width: int = 512
    heads: int = 8
    layers: int = 12
    quick_gelu: bool = False
    """OpenAI's weights, and those trained from them, were made with QuickGELU."""

    def __post_init__(self) -> None:
        if min(self.width, self.heads, self.layers) < 1 or self.width % self.heads:
            raise ConfigError(
                f"--task.text: {self.layers} layers of width {self.width} with {self.heads} heads: "
                "each at least 1, and the width a multiple of the heads"
            )


@dataclass(frozen=True)
class SentenceTextConfig:
    """A sentence encoder whose weights stay as they are."""

    kind: ClassVar[str] = "sentence"
    folder: str = ""
    """Of a sentence-transformers model with safetensors weights."""


@dataclass(frozen=True)
class ContrastiveConfig:
    """Bring a clip and its caption together (CLIP, arXiv 2103.00020)."""

    kind: ClassVar[str] = "contrastive"
    text: ClipTextConfig | SentenceTextConfig = field(default_factory=ClipTextConfig)
    embed_dim: int = 256
    """Length of the vectors both sides end in."""
    loss: Literal["info-nce", "max-margin"] = "info-nce"
    """info-nce: symmetric cross-entropy over the batch; max-margin: hinge on every wrong pair, for
    retrieval with graded relevancy (EK-100 MIR)."""
    margin: float = 0.2
    """Of max-margin."""
    graded: bool = False
    """max-margin: scale the margin of a pair by 1 - its relevancy (from `verb` and `noun`)."""
    temperature: float = 0.07
    """At the start of training."""
    learn_temperature: bool = True
    local_loss: bool = False
    """On several ranks: each computes the rows of its own clips; same gradient, less memory."""

    def __post_init__(self) -> None:
        if self.embed_dim < 1:
            raise ConfigError(f"--task.embed-dim {self.embed_dim}: at least 1")
        if not self.temperature >= 0.01:
            raise ConfigError(f"--task.temperature {self.temperature}: at least 0.01, CLIP's limit")
        if not self.margin > 0:
            raise ConfigError(f"--task.margin {self.margin}: must be positive")
        if self.graded and self.loss != "max-margin":
            raise ConfigError("--task.graded has no effect without --task.loss max-margin")


@dataclass(frozen=True)
class MaskedConfig:
    """Reconstruct hidden patches from visible ones (VideoMAE, arXiv 2203.12602)."""

    kind: ClassVar[str] = "masked"
    mask_ratio: float = 0.9
    """Part of the tubes that the encoder never sees."""
    decode_ratio: float = 1.0
    """Part of the hidden patches that the decoder reconstructs: VideoMAE V2's dual masking
    (arXiv 2303.16727) takes 0.5."""
    decoder_depth: int = 4
    decoder_width: int = 384
    decoder_heads: int = 6
    normalise_targets: bool = True
    """Each patch's pixels by its own mean and deviation."""

    def __post_init__(self) -> None:
        if not 0 < self.mask_ratio < 1:
            raise ConfigError(f"--task.mask-ratio {self.mask_ratio}: between 0 and 1, without them")
        if not 0 < self.decode_ratio <= 1:
            raise ConfigError(f"--task.decode-ratio {self.decode_ratio}: in (0, 1]")
        for name in ("depth", "width", "heads"):
            if getattr(self, f"decoder_{name}") < 1:
                raise ConfigError(
                    f"--task.decoder-{name} {getattr(self, f'decoder_{name}')}: at least 1"
                )
        if self.decoder_width % self.decoder_heads:
            raise ConfigError(
                f"--task.decoder-width {self.decoder_width} is no multiple of "
                f"--task.decoder-heads {self.decoder_heads}"
            )


TaskConfig = ClassificationConfig | ContrastiveConfig | MaskedConfig
