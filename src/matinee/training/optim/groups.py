"""Which parameters are trained alike: weight decay, learning rate, and whose rule.

# Note [Muon and AdamW]
Muon replaces a matrix's step by the orthogonal matrix nearest to it, which means something only for
weights that map one layer's activations to the next one's. Linear layers, convolutions (their
kernels flattened to [out, in·k·k]) and the projections of attention are such matrices. AdamW takes
the rest: what sees pixels, classifiers and other last layers, embeddings, positions, tokens, norms,
biases, and grouped convolutions, whose flattened kernels are no map but several side by side.

An orthogonal [A, B] matrix has elements of root mean square 1 / √max(A, B). Times 0.2 √max(A, B) a
Muon step is as long as AdamW's usually are, so that one learning rate and one weight decay, chosen
as for AdamW, serve both.

Source: Muon is Scalable for LLM Training, arXiv 2502.16982, §2.2.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from matinee.errors import ConfigError
from matinee.models.joint import JointModel
from matinee.models.masked import MaskedAutoencoder
from matinee.models.weights.names import classifiers, image_network
from matinee.training.optim.config import OptimConfig

_EMBEDDINGS = {
    "pos_embed", "temporal_embed", "positional_embedding", "cls_token", "reg_token", "mask_token",
}  # fmt: skip
"""Learned positions and tokens, which are no weights though they have several dimensions."""
_BEFORE_BLOCKS = _EMBEDDINGS | {"patch_embed", "norm_pre"}
_COLOURS = 3


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """What is trained, by weight decay and by `lr_scale`: multiples of the rate of the step.

    Biases, norms (one dimension), positions and special tokens (also what timm's network names in
    `no_weight_decay`) are not decayed, and LAMB and LARS give them the plain rate. Groups and their
    parameters come in the same order each time. For Muon, see Note [Muon and AdamW].

    Raises:
        ConfigError: layer decay without a ViT of joint attention, or a classifier's rate without a
            classifier.
    Source: no decay on 1-D parameters, Bag of Tricks, arXiv 1812.01187, §3.1.
    """
    scales, undecayed = _lr_scales(model, config), _undecayed(model)
    matrices = hidden_matrices(model) if config.name == "muon" else set()
    groups: dict[tuple[float, bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decayed = parameter.ndim > 1 and name not in undecayed
            key = scales[name], decayed, name in matrices
            groups.setdefault(key, []).append(parameter)
    return [
        {
            "params": groups[scale, decayed, matrix],
            "weight_decay": config.weight_decay if decayed else 0.0,
            "lr_scale": scale,
            **_rule(config, decayed, matrix),
        }
        for scale, decayed, matrix in sorted(groups, reverse=True)
    ]


def hidden_matrices(model: nn.Module) -> set[str]:
    """Names of the weights that Muon takes. See Note [Muon and AdamW]."""
    network = image_network(model)
    last = [network.get_submodule(name) for name in classifiers(network)]
    if isinstance(model, MaskedAutoencoder):
        last.append(model.decoder.head)
    outside = {id(module) for head in last for module in head.modules()}
    found = set()
    for name, module in model.named_modules():
        if id(module) in outside:
            continue
        if isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
            found.add(f"{name}.in_proj_weight")
        if isinstance(module, nn.Linear) or (
            isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
            and module.groups == 1
            and module.in_channels != _COLOURS
        ):
            found.add(f"{name}.weight" if name else "weight")
    return found


def layer_of(name: str, depth: int) -> int:
    """Which layer of a `JointModel` with `depth` blocks a parameter belongs to.

    0 before the blocks, i + 1 for block i, depth + 1 after them (norm and classifier).
    """
    first, _, rest = name.removeprefix("backbone.").partition(".")
    if first == "blocks":
        return int(rest.partition(".")[0]) + 1
    return 0 if first in _BEFORE_BLOCKS else depth + 1


def _rule(config: OptimConfig, decayed: bool, matrix: bool) -> dict[str, Any]:
    """What an optimizer must know of a group besides its rates."""
    if config.name in ("lamb", "lars"):
        return {"always_adapt": decayed}  # timm would otherwise adapt no weight without decay
    if config.name == "muon":
        # Nesterov's momentum for matrices; timm would make AdamW NAdamW by it. Each rule's own eps.
        return {"use_muon": matrix, "nesterov": matrix, "eps": 1e-7 if matrix else 1e-8}
    return {}


def _undecayed(model: nn.Module) -> set[str]:
    """Parameters that are no weights though they have several dimensions."""
    network = image_network(model)
    named = set(getattr(network, "no_weight_decay", set)())
    special = {id(p) for name, p in network.named_parameters() if name in named}
    return {
        name
        for name, p in model.named_parameters()
        if id(p) in special or name.rpartition(".")[2] in _EMBEDDINGS
    }


def _lr_scales(model: nn.Module, config: OptimConfig) -> dict[str, float]:
    """By what each parameter's rate is multiplied."""
    scales = {name: 1.0 for name, _ in model.named_parameters()}
    if config.layer_decay != 1:
        if not isinstance(model, JointModel):
            raise ConfigError(
                f"--optim.layer-decay {config.layer_decay} is for fine-tuning a ViT with joint "
                "attention: leave it at 1"
            )
        depth = len(model.backbone.blocks)
        for name in scales:
            scales[name] = config.layer_decay ** (depth + 1 - layer_of(name, depth))
    if config.head_lr != 1:
        heads = tuple(f"backbone.{head}." for head in classifiers(image_network(model)))
        found = [name for name in scales if heads and name.startswith(heads)]
        if not found:
            raise ConfigError(
                f"--optim.head-lr {config.head_lr}: this network has no classifier; leave it at 1"
            )
        for name in found:
            scales[name] *= config.head_lr
    return scales
