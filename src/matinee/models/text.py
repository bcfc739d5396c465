"""Text towers: CLIP's transformer, trained, and a sentence encoder that stays as it is.

# Note [Text towers]
Both turn texts into ids on the CPU (`tokenize`, [B, L]) and ids into pooled features on the device
(`forward`, [B, width]); the projection into the shared space belongs to the dual encoder. A text
longer than the tower's `context` is cut, and counted: nothing is lost in silence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from matinee.errors import ConfigError, first_line
from matinee.extras import require


@dataclass(frozen=True)
class Tokens:
    """ids: int64 [B, L] on the CPU. cut: how many of the texts were too long for the context."""

    ids: Tensor
    cut: int


def check_texts(texts: Sequence[str], names: Sequence[str]) -> None:
    """Refuse captions without a character to see.

    Args:
        names: of the samples, one per text.

    Raises:
        ConfigError: with how many are empty, and the first.
    """
    empty = [name for text, name in zip(texts, names, strict=True) if not text.strip()]
    if empty:
        raise ConfigError(
            f"{len(empty)} of {len(texts)} captions are empty, the first that of sample "
            f"{empty[0]!r}: write captions for these samples, or leave them out"
        )


class ClipText(nn.Module):
    """CLIP's causal text transformer with its tokenizer; features are those of the end of text.

    The parameters have open_clip's names, so that published text towers load as they are.
    Source: CLIP, arXiv 2103.00020, §2.4.

    Args:
        quick_gelu: x·σ(1.702 x) instead of GELU, as OpenAI's weights were trained with.
    """

    context, vocabulary = 77, 49408

    def __init__(
        self, *, width: int = 512, heads: int = 8, layers: int = 12, quick_gelu: bool = False
    ) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(f"a text width of {width} cannot be shared among {heads} heads")
        open_clip: Any = require("open_clip", "text")
        built = open_clip.transformer.TextTransformer(
            context_length=self.context,
            vocab_size=self.vocabulary,
            width=width,
            heads=heads,
            layers=layers,
            output_dim=None,
            act_layer=open_clip.transformer.QuickGELU if quick_gelu else nn.GELU,
        )
        self.width = width
        self.tokenizer = open_clip.SimpleTokenizer(context_length=self.context)
        self.token_embedding = built.token_embedding
        self.positional_embedding: nn.Parameter = built.positional_embedding
        self.transformer = built.transformer
        self.ln_final = built.ln_final
        self.attn_mask: Tensor
        self.register_buffer("attn_mask", built.attn_mask, persistent=False)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Ids [B, 77] between start and end of text, then zeros. A cut text keeps its end mark."""
        start, end = self.tokenizer.sot_token_id, self.tokenizer.eot_token_id
        ids = torch.zeros(len(texts), self.context, dtype=torch.int64)
        cut = 0
        for row, text in enumerate(texts):
            inner = self.tokenizer.encode(text)
            cut += len(inner) > self.context - 2
            whole = [start, *inner[: self.context - 2], end]
            ids[row, : len(whole)] = torch.tensor(whole)
        return Tokens(ids, cut)

    def count_cut(self, texts: Sequence[str]) -> int:
        """How many texts are too long, without tokenizing those that cannot be."""
        room = self.context - 2
        doubtful = (text for text in texts if _may_exceed(text, room))
        return sum(len(self.tokenizer.encode(text)) > room for text in doubtful)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [B, 77] → features [B, width]."""
        x = self.token_embedding(ids) + self.positional_embedding
        x = self.ln_final(self.transformer(x, attn_mask=self.attn_mask))
        # The end of text has the highest id of the vocabulary.
        pooled: Tensor = x[torch.arange(len(ids), device=ids.device), ids.argmax(dim=1)]
        return pooled


class SentenceText(nn.Module):
    """A frozen sentence encoder from a local sentence-transformers folder.

    It is never trained and always in evaluation mode. Checkpoints hold a digest of the folder
    instead of the weights, and load only where the same folder is given. Nothing is fetched, no
    code of the folder is run, and no pickled weights are read.

    Raises:
        ConfigError: the folder is missing or not such a model, or has no safetensors weights.
        MissingExtra: sentence-transformers is not installed.
    """

    digest: Tensor

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder = Path(folder)
        _check_folder(self.folder)
        sentences: Any = require("sentence_transformers", "sentences")
        try:
            with _no_progress_bars():
                encoder = sentences.SentenceTransformer(
                    str(self.folder),
                    device="cpu",
                    local_files_only=True,
                    trust_remote_code=False,
                    model_kwargs={"use_safetensors": True},
                )
        except Exception as error:
            raise ConfigError(
                f"{self.folder} could not be loaded as a sentence encoder: {first_line(error)}"
            ) from error
        if not encoder.max_seq_length:
            raise ConfigError(f"{self.folder} does not say its longest text (max_seq_length)")
        self.encoder = encoder.requires_grad_(False).eval()
        self.context = int(encoder.max_seq_length)
        self.width = int(encoder.get_embedding_dimension())
        self.register_buffer("digest", _digest(self.folder))
        hooks: Any = self  # untyped in torch
        hooks.register_state_dict_post_hook(_leave_out_encoder)
        hooks.register_load_state_dict_pre_hook(_keep_encoder)

    def train(self, mode: bool = True) -> SentenceText:
        """Training mode of everything but the encoder."""
        super().train(mode)
        self.encoder.eval()
        return self

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Ids [B, L] as long as the longest text, then -1."""
        features = self.encoder.preprocess(list(texts))
        ids: Tensor = features["input_ids"]
        ids = ids.masked_fill(features["attention_mask"] == 0, -1)
        full = (ids >= 0).sum(dim=1) == self.context
        cut = self.count_cut([text for text, is_full in zip(texts, full, strict=True) if is_full])
        return Tokens(ids, cut)

    def count_cut(self, texts: Sequence[str]) -> int:
        """How many texts are too long, without tokenizing those that cannot be."""
        tokenizer = self.encoder.tokenizer
        # One token more than characters: a mark for the start of the text.
        room = self.context - tokenizer.num_special_tokens_to_add() - 1
        doubtful = [text for text in texts if _may_exceed(text, room)]
        if not doubtful:
            return 0
        rows = tokenizer(doubtful, truncation=False, verbose=False)["input_ids"]
        return sum(len(row) > self.context for row in rows)

    @torch.no_grad()
    def forward(self, ids: Tensor) -> Tensor:
        """Ids [B, L] → features [B, width], as the folder's own pooling makes them."""
        seen = ids >= 0
        padded = torch.where(seen, ids, self.encoder.tokenizer.pad_token_id)
        features: dict[str, Tensor] = self.encoder(
            {"input_ids": padded, "attention_mask": seen.long()}
        )
        return features["sentence_embedding"]


TextTower = ClipText | SentenceText


def _may_exceed(text: str, room: int) -> bool:
    """False if the text has certainly no more than `room` tokens.

    A token covers a character or more, but of the text as its tokenizer has cleaned it. That never
    lengthens plain ASCII (an `&entity;` stands for no more bytes than it has characters); other
    texts it may: "Ⱥ" has two bytes and three tokens.
    """
    return len(text) > room or not text.isascii()


def _check_folder(folder: Path) -> None:
    try:
        modules = json.loads((folder / "modules.json").read_bytes())
        places = [folder / str(module["path"]) for module in modules]
    except (OSError, ValueError, TypeError, KeyError):
        raise ConfigError(
            f"{folder} is no folder of a sentence-transformers model (modules.json is missing or "
            "damaged): give the one the encoder was saved in"
        ) from None
    pickles = (".bin", ".ckpt", ".pkl", ".pt", ".pth")
    safe = [place for place in places if list(place.glob("*.safetensors"))]
    for place in places:
        pickled = [path for path in place.glob("*") if path.suffix in pickles]
        if place not in safe and (pickled or not safe):
            found = pickled[0].relative_to(folder) if pickled else "no weights"
            raise ConfigError(
                f"{folder} holds {found}, but weights must be safetensors: save the encoder anew "
                "with a current sentence-transformers"
            )


def _digest(folder: Path) -> Tensor:
    """SHA-256 over names and contents of weights, settings and vocabulary, uint8 [32]."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".json", ".model", ".safetensors", ".txt"):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            whole.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return torch.frombuffer(bytearray(whole.digest()), dtype=torch.uint8)


def _leave_out_encoder(
    module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object
) -> None:
    for name in [name for name in state if name.startswith(f"{prefix}encoder.")]:
        del state[name]


def _keep_encoder(module: nn.Module, state: dict[str, Any], prefix: str, *_rest: object) -> None:
    """Load the encoder from itself, once the checkpoint's digest says that it is the same.

    Raises:
        ConfigError: another encoder.
    """
    assert isinstance(module, SentenceText)
    saved = state.get(f"{prefix}digest")
    if saved is not None and not torch.equal(saved.cpu(), module.digest.cpu()):
        raise ConfigError(
            f"these weights were trained with another sentence encoder than {module.folder}: "
            "give the folder they were trained with"
        )
    for name, tensor in module.encoder.state_dict().items():
        state[f"{prefix}encoder.{name}"] = tensor


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    logging: Any = require("transformers.utils.logging", "sentences")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
