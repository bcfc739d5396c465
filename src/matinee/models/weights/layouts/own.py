"""Names of this package: runs, exports, and what `matinee import` writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from matinee.models.weights.layouts.base import Entry, Layout

_PREFIXES = ("backbone.", "video.backbone.", "encoder.patch_embed.", "encoder.blocks.")


def _recognises(state: Mapping[str, Tensor]) -> bool:
    return any(key.startswith(_PREFIXES) for key in state)


def _entries(state: Mapping[str, Tensor], known: Sequence[str]) -> Iterator[Entry]:
    names = set(known)
    for key, value in state.items():
        name = key.removeprefix("video.")
        if name.startswith("encoder."):
            name = f"backbone.{name.removeprefix('encoder.')}"
        yield unwrap(name, names), value, key


def unwrap(name: str, known: set[str]) -> str:
    """Leave out the segments of shift and non-local wrappers, if a known name results.

    A shifted convolution is `….conv1.conv.`, a wrapped block `….block.`; but some networks have
    `.conv.` of their own, so only what is known decides.
    """
    if name in known:
        return name
    words = name.split(".")
    without = [w for i, w in enumerate(words) if w != "block" or i == 0]
    for plain in (words, without):
        for i, word in enumerate(plain):
            shorter = ".".join(plain[:i] + plain[i + 1 :]) if word == "conv" else ".".join(plain)
            if shorter in known:
                return shorter
    return name


OWN = Layout("matinee", _recognises, _entries)
