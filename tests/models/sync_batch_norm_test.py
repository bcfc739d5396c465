"""Batch normalisation over all ranks: which layers, and that nothing else changes."""

import copy

import pytest
import torch
from timm.layers.norm_act import BatchNormAct2d, SyncBatchNormAct
from torch import nn

from matinee.errors import ConfigError
from matinee.models.batch_norm import to_sync_batch_norm
from matinee.models.build import build_video_model
from matinee.models.config import Frames, Joint, ModelConfig, Shift

GPU, CPU = torch.device("cuda"), torch.device("cpu")
VIDEO = torch.randn(2, 3, 4, 32, 32, generator=torch.Generator().manual_seed(0))


def network(name="test_resnet", **changes):
    torch.manual_seed(0)
    config = ModelConfig(name, **{"temporal": Shift(), "dropout": 0.0, **changes})
    return build_video_model(config, num_classes=3, frames=4, size=32)[0]


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet"])
def test_all_norms_become_synchronised_and_compute_what_they_did_on_one_rank(name):
    """EfficientNet's norms carry an activation, which must stay."""
    plain = network(name, temporal=Frames()).train()
    model = copy.deepcopy(plain)
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in plain.modules())
    assert to_sync_batch_norm(model, GPU) == norms > 5
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    with_act = sum(isinstance(m, SyncBatchNormAct) for m in model.modules())
    assert with_act == sum(isinstance(m, BatchNormAct2d) for m in plain.modules())
    assert (with_act > 0) == (name == "test_efficientnet")
    states = []
    for each in (plain, model):
        each(VIDEO).square().sum().backward()
        gradients = {f"{k}.grad": p.grad for k, p in each.named_parameters()}
        states.append({**each.state_dict(), **gradients})
    assert list(states[0]) == list(states[1])
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value)


def test_norms_that_partial_bn_has_frozen_stay_as_they_are():
    model = network(partial_bn=True)
    frozen = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)][1:]
    assert to_sync_batch_norm(model.eval(), GPU) == 1  # whatever the mode
    left = [m for m in model.train().modules() if isinstance(m, nn.BatchNorm2d)]
    assert [id(m) for m in left] == [id(m) for m in frozen]
    assert not any(m.training for m in left)
    (synchronised,) = (m for m in model.modules() if isinstance(m, nn.SyncBatchNorm))
    assert synchronised.training


def test_a_cpu_and_a_network_without_batch_norm_are_refused():
    model = network()
    with pytest.raises(ConfigError, match=r"--parallel\.sync-bn.* GPUs alone"):
        to_sync_batch_norm(model, CPU)
    assert not any(isinstance(m, nn.SyncBatchNorm) for m in model.modules())
    vit = network("test_vit", temporal=Joint(), patch_size=8)
    with pytest.raises(ConfigError, match=r"--parallel\.sync-bn: JointModel has no batch norm"):
        to_sync_batch_norm(vit, GPU)
    with pytest.raises(ConfigError, match="FrameModel has no batch norm"):
        to_sync_batch_norm(network("test_convnext", temporal=Frames()), GPU)
