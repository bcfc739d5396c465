"""Blocks computed anew in the backward pass against the same networks that keep everything."""

import copy

import pytest
import timm
import torch
from torch import nn

from matinee.errors import ConfigError
from matinee.models.build import build_encoder, build_video_model
from matinee.models.config import Frames, Inflate, Joint, ModelConfig, Shift
from matinee.models.dual import DualEncoder
from matinee.models.masked import MaskedAutoencoder
from matinee.models.masks import tube_mask
from matinee.models.recompute import recompute_blocks
from matinee.models.text import ClipText

FRAMES, SIZE = 4, 32
VIDEO = torch.randn(2, 3, FRAMES, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def video_network(config, classes=3):
    torch.manual_seed(0)
    return build_video_model(config, num_classes=classes, frames=FRAMES, size=SIZE)[0]


def frames_of(name):
    return lambda: video_network(ModelConfig(name, Frames(), dropout=0.2, drop_path=0.2))


def autoencoder():
    torch.manual_seed(0)
    joint = Joint(tubelet=2, positions="sine")
    encoder, _ = build_encoder(
        ModelConfig("test_vit", joint, patch_size=8, drop_path=0.3), size=SIZE
    )
    return MaskedAutoencoder(
        encoder, frames=FRAMES, mean=[0.5] * 3, std=[0.5] * 3, decoder_width=16, decoder_heads=2
    )


def dual():
    video = video_network(ModelConfig("test_resnet", Shift(), dropout=0.0), classes=0)
    return DualEncoder(video, ClipText(width=16, heads=2, layers=3), embed_dim=8)


VIT = ModelConfig("test_vit", Joint(patch_dropout=0.25), patch_size=8, drop_path=0.3)
NETWORKS = {
    "shift, pooling, non-local": lambda: video_network(
        ModelConfig("test_resnet", Shift(pool=True, non_local=True))
    ),
    "in-place shift": lambda: video_network(ModelConfig("test_resnet", Shift("in-place"))),
    "inflated": lambda: video_network(ModelConfig("test_resnet", Inflate(), drop_path=0.2)),
    "efficientnet": frames_of("test_efficientnet"),
    "mobilenet": frames_of("mobilenetv3_small_050"),
    "convnext": frames_of("test_convnext"),
    "regnet": frames_of("regnety_002"),
    "joint": lambda: video_network(VIT),
    "masked": autoencoder,
    "dual": dual,
}


def loss_of(model):
    if isinstance(model, MaskedAutoencoder):
        mask = tube_mask(FRAMES // 2, 16, 0.75, seeds=[1, 2])
        return model(VIDEO, mask)[0].sum()
    if isinstance(model, DualEncoder):
        video, text, scale = model(VIDEO, model.text.tokenize(["a red square", "a dot"]).ids)
        return (scale * video @ text.T).logsumexp(1).sum()
    return model(VIDEO).square().sum()


def step(model):
    """Loss, gradients and buffers of a training step, and the bytes that autograd was given."""
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    model.train()
    torch.manual_seed(3)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loss_of(model)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    return {"loss": loss.detach(), **gradients, **buffers}, sum(kept.values())


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("kind", NETWORKS)
def test_gradients_and_running_statistics_are_bitwise_those_without_and_less_is_kept(kind, every):
    """Dropout, drop path and patch dropout are drawn alike; statistics move once."""
    wanted, kept = step(NETWORKS[kind]())
    model = NETWORKS[kind]()
    keys = list(model.state_dict())
    assert recompute_blocks(model, every) > 0
    assert list(model.state_dict()) == keys
    got, less = step(model)
    assert less < (0.8 if every == 1 else 0.95) * kept
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        if value is None:
            assert got[name] is None, name
        else:
            assert torch.equal(got[name], value), name


@pytest.mark.parametrize("every", [0, 1, 2, 3])
def test_the_first_and_every_nth_block_run_twice_in_training_and_once_otherwise(every):
    model = video_network(VIT)
    calls = []
    for block in model.backbone.blocks:
        block.mlp.fc1.register_forward_hook(lambda *_: calls.append(1))
    depth = len(model.backbone.blocks)
    chosen = len(range(0, depth, every)) if every else 0
    assert recompute_blocks(model, every) == chosen
    model.train()(VIDEO).sum().backward()
    assert len(calls) == depth + chosen
    calls.clear()
    with torch.no_grad():
        model(VIDEO)
    model.eval()(VIDEO).sum().backward()
    assert len(calls) == 2 * depth


def test_blocks_are_counted_in_each_tower_and_in_encoder_and_decoder():
    """Stages of test_resnet: 4 blocks in all; test_vit: 6, and 4 of the decoder."""
    assert recompute_blocks(dual(), 1) == 4 + 3
    assert recompute_blocks(dual(), 2) == 2 + 2
    assert recompute_blocks(autoencoder(), 1) == 6 + 4


def test_a_copy_of_the_network_computes_with_its_own_weights():
    model = NETWORKS["inflated"]()
    recompute_blocks(model, 1)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert twin.train()(VIDEO).abs().max() == 0 < model.train()(VIDEO).abs().max()


@pytest.mark.parametrize("name", ["vgg11", "ghostnet_050", "densenet121"])
def test_networks_without_known_blocks_are_refused_by_name(name):
    with torch.device("meta"):
        network = timm.create_model(name)
    with pytest.raises(ConfigError, match=rf"{type(network).__name__} .*--speed.recompute 0"):
        recompute_blocks(network, 1)
    assert all("forward" not in module.__dict__ for module in network.modules())
    with pytest.raises(ConfigError, match="Linear"):
        recompute_blocks(nn.Linear(2, 2), 1)
