"""The dual encoder against open_clip's CLIP and the formulae of its paper."""

import math

import numpy as np
import open_clip
import pytest
import torch
from torch import Tensor, nn

from matinee.errors import ConfigError
from matinee.models.base import VideoModel
from matinee.models.dual import DualEncoder
from matinee.models.text import ClipText

CAPTIONS = ["a person bends down", "a red square moves left"]


class MeanColour(VideoModel):
    """The smallest video network: a linear layer on the mean colour."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.frames, self.num_features = 2, width
        self.layer, self.head = nn.Linear(3, width), nn.Linear(width, 2)

    def embed(self, video_BCTHW: Tensor) -> Tensor:
        return self.layer(video_BCTHW.mean(dim=(2, 3, 4)))

    def forward(self, video_BCTHW: Tensor) -> Tensor:
        return self.head(self.embed(video_BCTHW))


def build(**settings) -> DualEncoder:
    torch.manual_seed(0)
    return DualEncoder(MeanColour(), ClipText(width=16, heads=2, layers=1), **settings)


def test_text_vectors_equal_open_clips():
    """Through transformer, projection and normalisation, in float64."""
    torch.manual_seed(1)
    model = open_clip.CLIP(
        12,
        vision_cfg={"image_size": 8, "patch_size": 4, "width": 16, "layers": 1, "head_width": 8},
        text_cfg={"width": 16, "heads": 2, "layers": 1},
    ).double()
    dual = build(embed_dim=12).double()
    state = model.state_dict()
    dual.text.load_state_dict({name: state[name] for name in dual.text.state_dict()})
    with torch.no_grad():
        dual.text_projection.copy_(model.text_projection)
    ids = dual.text.tokenize(CAPTIONS).ids
    wanted = model.encode_text(ids, normalize=True)
    torch.testing.assert_close(dual.embed_text(ids), wanted, rtol=1e-12, atol=1e-12)


def test_video_vectors_are_projected_and_normalised():
    dual = build(embed_dim=5).double()
    video = torch.randn(3, 3, 2, 4, 4, dtype=torch.float64)
    rows = dual.video.embed(video).detach().numpy() @ dual.video_projection.detach().numpy()
    wanted = rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(dual.embed_video(video).detach().numpy(), wanted, rtol=1e-12)


def test_vectors_have_length_one_in_float32_under_autocast():
    dual = build()
    with torch.autocast("cpu", torch.bfloat16):
        video, text, _ = dual(torch.randn(2, 3, 2, 4, 4), dual.text.tokenize(CAPTIONS).ids)
    for rows in (video, text):
        assert rows.dtype == torch.float32 and rows.shape == (2, 256)
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(2), rtol=0, atol=1e-6)


def test_projections_begin_with_clips_spread():
    torch.manual_seed(0)
    dual = DualEncoder(MeanColour(400), ClipText(width=100, heads=2, layers=1), embed_dim=300)
    assert dual.video_projection.shape == (400, 300) and dual.text_projection.shape == (100, 300)
    assert float(dual.video_projection.detach().std()) == pytest.approx(1 / 20, rel=0.02)
    assert float(dual.text_projection.detach().std()) == pytest.approx(1 / 10, rel=0.02)


def test_temperature_is_learned_or_stays():
    for learn in (True, False):
        dual = build(temperature=0.05, learn_temperature=learn)
        assert float(dual.scale().detach()) == pytest.approx(20)
        assert dual.scale().requires_grad == learn
        assert ("logit_scale" in dict(dual.named_parameters())) == learn
        assert float(dual.state_dict()["logit_scale"]) == pytest.approx(math.log(20))


def test_temperature_stops_at_clips_limit_and_can_come_back():
    """Beyond the limit the gradient must not vanish, or the parameter would be stuck there."""
    dual = build()
    with torch.no_grad():
        dual.logit_scale.fill_(7.0)
    scale = dual.scale()
    assert float(scale.detach()) == pytest.approx(100)
    scale.backward()
    assert float(dual.logit_scale.grad) == pytest.approx(100)
    with torch.no_grad():
        dual.logit_scale -= 1e-3
    assert float(dual.scale().detach()) == pytest.approx(100 * math.exp(-1e-3))


@pytest.mark.parametrize("temperature", [0.0, 0.005, -1.0, math.nan])
def test_a_temperature_beyond_the_limit_is_refused(temperature):
    with pytest.raises(ConfigError, match=r"a temperature of .*: at least 0\.01"):
        build(temperature=temperature)
