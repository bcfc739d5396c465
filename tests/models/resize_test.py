"""A network resized for smaller clips against one that is built for them, with its weights."""

import pytest
import timm
import torch
import torch.nn.functional as F

from matinee.errors import ConfigError
from matinee.models.build import build_encoder, build_video_model
from matinee.models.config import Frames, Inflate, Joint, ModelConfig, Shift
from matinee.models.dual import DualEncoder
from matinee.models.joint import JointModel
from matinee.models.masked import MaskedAutoencoder
from matinee.models.resize import resize_clips
from matinee.models.text import ClipText
from matinee.tasks.config import MaskedConfig
from matinee.tasks.masked import MaskedTask

FULL, SMALL = (8, 64), (4, 48)  # frames and size


def clips(frames, size):
    generator = torch.Generator().manual_seed(frames * size)
    return torch.randn(2, 3, frames, size, size, generator=generator)


def randomised(model):
    """Nothing that is without effect at first (norms, temporal embeddings) stays so."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def network(config, frames, size, classes=3):
    torch.manual_seed(0)
    return build_video_model(config, num_classes=classes, frames=frames, size=size)[0]


CNNS = {
    "frames": ModelConfig("test_efficientnet", Frames()),
    "shift": ModelConfig("test_resnet", Shift()),
    "in-place, causal": ModelConfig("test_resnet", Shift("in-place", causal=True)),
    "pooling and non-local": ModelConfig("test_resnet", Shift(pool=True, non_local=True)),
    "3x3x3": ModelConfig("test_resnet", Inflate()),
    "3x1x1": ModelConfig("test_efficientnet", Inflate("3x1x1")),
}


@pytest.mark.parametrize("frames", [2, 3, 5])
@pytest.mark.parametrize("kind", CNNS)
def test_a_cnn_computes_what_one_made_for_these_clips_does(kind, frames):
    """Also an odd number of frames, which pooling rounds up."""
    model = randomised(network(CNNS[kind], *FULL))
    wanted = network(CNNS[kind], frames, 48).eval()
    wanted.load_state_dict(model.state_dict())
    video = clips(frames, 48)
    resize_clips(model, frames=frames, size=48)
    assert torch.equal(model(video), wanted(video))
    with pytest.raises(ValueError, match=f"a clip of 8 frames for a network made for {frames}"):
        model(clips(*FULL))


def interpolated(state, *, grid, new_grid, steps, prefix):
    """Positions by timm in space and by torch's linear interpolation in time."""
    state = dict(state)
    state["backbone.pos_embed"] = timm.layers.resample_abs_pos_embed(
        state["backbone.pos_embed"], new_grid, grid, num_prefix_tokens=prefix
    )
    rows = state["temporal_embed"].mT
    state["temporal_embed"] = F.interpolate(rows, size=steps, mode="linear").mT
    return state


VITS = {
    "frame": (ModelConfig("test_vit", Joint(), patch_size=16), 1),
    "clip": (ModelConfig("test_vit", Joint(class_token="clip"), patch_size=16), 1),
    "tubelets": (ModelConfig("test_vit", Joint(tubelet=2), patch_size=8), 1),
    "class token without a place": (
        ModelConfig("vit_xsmall_patch16_clip_224", Joint(), patch_size=16), 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", VITS)
def test_a_vit_computes_what_one_with_interpolated_positions_does(kind):
    config, prefix = VITS[kind]
    model = randomised(network(config, *FULL))
    wanted = network(config, *SMALL).eval()
    patch = config.patch_size
    state = interpolated(
        model.state_dict(), grid=(64 // patch,) * 2, new_grid=(48 // patch,) * 2,
        steps=4 // model.tubelet, prefix=prefix,
    )  # fmt: skip
    wanted.load_state_dict(state)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    resize_clips(model, frames=4, size=48)
    video = clips(*SMALL)
    torch.testing.assert_close(model(video), wanted(video), rtol=1e-4, atol=1e-5)
    assert {name: value.shape for name, value in model.state_dict().items()} == shapes


def test_register_tokens_without_a_place_keep_none():
    """They have no position of their own: `pos_embed` is of the patches alone."""
    models = []
    for frames, size in (FULL, SMALL):
        vit = timm.create_model(
            "vit_small_patch14_reg4_dinov2", img_size=size, patch_size=8, embed_dim=24, depth=1,
            num_heads=3, num_classes=3,
        )  # fmt: skip
        models.append(JointModel(vit, frames=frames).eval())
    model, wanted = randomised(models[0]), models[1]
    assert model.backbone.pos_embed.shape[1] == 64
    wanted.load_state_dict(
        interpolated(model.state_dict(), grid=(8, 8), new_grid=(6, 6), steps=4, prefix=0)
    )
    resize_clips(model, frames=4, size=48)
    torch.testing.assert_close(model(clips(*SMALL)), wanted(clips(*SMALL)), rtol=1e-4, atol=1e-5)


def test_gradients_of_small_clips_reach_every_learned_position():
    model = network(VITS["frame"][0], *FULL)
    resize_clips(model, frames=4, size=48)
    model(clips(*SMALL)).square().sum().backward()
    for parameter in (model.temporal_embed, model.backbone.pos_embed):
        assert (parameter.grad.abs().amax(dim=2) > 0).all()


@pytest.mark.parametrize("kind", ["shift", "3x3x3", "frame", "tubelets", "sine", "masked"])
def test_back_at_full_size_the_network_is_bitwise_the_one_it_was(kind):
    sine = ModelConfig("test_vit", Joint(tubelet=2, positions="sine"), patch_size=8)
    if kind == "masked":
        model, inputs = autoencoder(*FULL), (clips(*FULL), masks_of(*FULL)[0])
    else:
        config = CNNS.get(kind) or {"sine": sine, **{k: v[0] for k, v in VITS.items()}}[kind]
        model, inputs = randomised(network(config, *FULL)), (clips(*FULL),)
    outputs = []
    for change in (None, FULL, SMALL, FULL):
        if change:
            resize_clips(model, frames=change[0], size=change[1])
        if change != SMALL:
            out = model(*inputs)
            outputs.append(out[0] if kind == "masked" else out)
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


def test_a_fixed_table_is_that_of_the_new_clips():
    config = ModelConfig("test_vit", Joint(tubelet=2, positions="sine"), patch_size=16)
    model = randomised(network(config, *FULL))
    wanted = network(config, *SMALL).eval()
    wanted.load_state_dict(model.state_dict())
    resize_clips(model, frames=4, size=48)
    assert torch.equal(model(clips(*SMALL)), wanted(clips(*SMALL)))


def autoencoder(frames, size):
    torch.manual_seed(0)
    joint = Joint(tubelet=2, positions="sine")
    encoder, _ = build_encoder(ModelConfig("test_vit", joint, patch_size=8), size=size)
    return MaskedAutoencoder(
        encoder, frames=frames, mean=[0.5] * 3, std=[0.5] * 3, decoder_width=16, decoder_heads=2
    ).eval()


def masks_of(frames, size):
    task = MaskedTask(autoencoder(frames, size), MaskedConfig(mask_ratio=0.75))
    return task.masks(torch.tensor([3, 4]), torch.device("cpu"))


def test_a_masked_autoencoder_and_its_tasks_masks_follow():
    model = autoencoder(*FULL)
    wanted = autoencoder(*SMALL)
    wanted.load_state_dict(model.state_dict())
    task = MaskedTask(model, MaskedConfig(mask_ratio=0.75))
    resize_clips(model, frames=4, size=48)
    hidden, _ = task.masks(torch.tensor([3, 4]), torch.device("cpu"))
    assert torch.equal(hidden, masks_of(*SMALL)[0])
    assert task.hidden_patches() == (27, 36) and task.counts() == (2 * 9, 2 * 27)
    for got, want in zip(
        model(clips(*SMALL), hidden, counts=task.counts()), wanted(clips(*SMALL), hidden),
        strict=True,
    ):  # fmt: skip
        assert torch.equal(got, want)


def test_a_dual_encoders_clips_are_resized_and_its_texts_are_not():
    video = randomised(network(CNNS["shift"], *FULL, classes=0))
    dual = DualEncoder(video, ClipText(width=8, heads=2, layers=1), embed_dim=4)
    wanted = network(CNNS["shift"], *SMALL, classes=0).eval()
    wanted.load_state_dict(video.state_dict())
    ids = dual.text.tokenize(["a dot"]).ids
    text = dual.embed_text(ids)
    resize_clips(dual, frames=4, size=48)
    rows = F.normalize(wanted.embed(clips(*SMALL)) @ dual.video_projection)
    torch.testing.assert_close(dual.embed_video(clips(*SMALL)), rows)
    assert torch.equal(dual.embed_text(ids), text)


SWIN = ModelConfig("test_vit", Frames(), patch_size=16)  # bound to its size, as a Swin is


@pytest.mark.parametrize(
    ("config", "to", "words"),
    [
        (SWIN, (8, 48), "VisionTransformer is made for pictures of 64 pixels and cannot take 48"),
        (CNNS["shift"], (0, 48), "clips of 0 frames"),
        (CNNS["pooling and non-local"], (1, 48), "pooling over 1 frame"),
        (VITS["tubelets"][0], (3, 48), "3 frames cannot be cut into tubelets of 2"),
        (VITS["tubelets"][0], (4, 50), "50 pixels are no multiple of the 8 pixels of a patch"),
    ],
)
def test_clips_that_a_network_cannot_take_are_refused_and_change_nothing(config, to, words):
    model = network(config, *FULL).eval()
    before = model(clips(*FULL))
    with pytest.raises(ConfigError, match=words):
        resize_clips(model, frames=to[0], size=to[1])
    assert torch.equal(model(clips(*FULL)), before)


def test_a_network_of_fixed_size_takes_other_numbers_of_frames():
    model = network(SWIN, *FULL).eval()
    resize_clips(model, frames=2, size=64)
    assert model(clips(2, 64)).shape == (2, 3)


def test_networks_that_are_no_video_networks_are_refused():
    with pytest.raises(ConfigError, match="a Linear cannot take clips of another size"):
        resize_clips(torch.nn.Linear(1, 1), frames=1, size=8)
