"""VideoMAE against loops, and against the implementation in transformers on the same tensors."""

import pytest
import timm
import torch

from matinee.errors import ConfigError
from matinee.models.joint import JointModel
from matinee.models.masked import MaskedAutoencoder, plain_encoder
from matinee.models.masks import running_cell_mask, tube_mask
from matinee.models.patches import patchify, unpatchify
from matinee.models.weights import load_into

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FRAMES, SIZE, PATCH, STEPS, GRID = 8, 32, 8, 4, 4
TOKENS = STEPS * GRID * GRID
FAMILY = {"patch_size": PATCH, "embed_dim": 24, "num_heads": 3, "depth": 2}


def encoder(**changes):
    options = {"class_token": False, "global_pool": "avg", "fc_norm": False, "num_classes": 0}
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=SIZE, **{**FAMILY, **options, **changes}
    )


def autoencoder(**changes):
    """A small float64 network, every parameter random."""
    torch.manual_seed(0)
    options = {"decoder_depth": 2, "decoder_width": 12, "decoder_heads": 2, **changes}
    model = MaskedAutoencoder(encoder(), frames=FRAMES, mean=MEAN, std=STD, **options)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def clips(count=2):
    generator = torch.Generator().manual_seed(1)
    shape = (count, 3, FRAMES, SIZE, SIZE)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def pixels_of(video, b, token):
    """The patch [2, p, p, 3] of a token, cut by hand."""
    step, place = divmod(token, GRID * GRID)
    y, x = (v * PATCH for v in divmod(place, GRID))
    return video[b, :, 2 * step : 2 * step + 2, y : y + PATCH, x : x + PATCH].permute(1, 2, 3, 0)


def tubes(count=2, ratio=0.75, seed=0):
    return tube_mask(STEPS, GRID * GRID, ratio, seeds=range(seed, seed + count))


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("dual", [False, True])
def test_the_loss_is_the_mean_squared_error_over_hidden_decoded_tokens(normalise, dual):
    """Token by token and colour by colour in a loop, from the pixels in 0–1."""
    model, video, mask = autoencoder(normalise_targets=normalise), clips(), tubes()
    decode = running_cell_mask(STEPS, (GRID, GRID), 0.5, seeds=[5, 6]) if dual else None
    loss, prediction = model(video, mask, decode)
    std, mean = (
        torch.tensor(v, dtype=torch.float64)[None, :, None, None, None] for v in (STD, MEAN)
    )
    unit = video * std + mean
    for b in range(2):
        wanted = (mask if decode is None else decode)[b].nonzero().flatten().tolist()
        errors = []
        for row, token in zip(prediction[b], wanted, strict=True):
            if not mask[b, token]:
                continue
            patch = pixels_of(unit, b, token).reshape(-1, 3)
            for colour in range(3):
                target = patch[:, colour]
                if normalise:
                    target = (target - target.mean()) / (target.std() + 1e-6)
                errors.append((row.view(-1, 3)[:, colour] - target).square().mean())
        torch.testing.assert_close(loss[b], torch.stack(errors).mean(), atol=1e-6, rtol=1e-6)
        assert len(errors) == 3 * (24 if dual else 48)  # half of 16 · 3/4 · 4


@pytest.mark.parametrize("normalise", [True, False])
def test_loss_and_prediction_are_those_of_transformers(normalise):
    """Its VideoMAE with our tensors under its names; norms' epsilons set to the published 1e-6."""
    transformers = pytest.importorskip("transformers")
    model, video, mask = autoencoder(normalise_targets=normalise), clips(), tubes()
    theirs = transformers.VideoMAEForPreTraining(reference_config(transformers, normalise))
    load_reference(theirs, reference_names(model.state_dict()))
    theirs.double().eval().decoder.norm.eps = 1e-6
    out = theirs(video.transpose(1, 2), bool_masked_pos=mask)
    loss, prediction = model(video, mask)
    torch.testing.assert_close(prediction, out.logits, atol=1e-6, rtol=0)
    torch.testing.assert_close(loss.mean(), out.loss, atol=1e-6, rtol=1e-6)


def reference_config(transformers, normalise=True, **changes):
    return transformers.VideoMAEConfig(
        image_size=SIZE, patch_size=PATCH, num_frames=FRAMES, hidden_size=24, num_hidden_layers=2,
        num_attention_heads=3, intermediate_size=96, decoder_num_attention_heads=2,
        decoder_hidden_size=12, decoder_num_hidden_layers=2, decoder_intermediate_size=48,
        use_mean_pooling=False, norm_pix_loss=normalise, layer_norm_eps=1e-6, **changes,
    )  # fmt: skip


def load_reference(theirs, state):
    """Strictly; older versions of transformers name two biases as VideoMAE does."""
    if any(key.endswith("q_bias") for key in theirs.state_dict()):
        state = {
            key.replace("query.bias", "q_bias").replace("value.bias", "v_bias"): value
            for key, value in state.items()
        }
    theirs.load_state_dict(state)


def reference_names(state, encoder="encoder.", norm="videomae.layernorm."):
    """Our keys as transformers'. It has no bias of the keys: softmax must ignore ours."""
    names = {
        f"{encoder}patch_embed.proj.": "videomae.embeddings.patch_embeddings.projection.",
        f"{encoder}blocks.": "videomae.encoder.layer.",
        f"{encoder}norm.": norm,
        "decoder.blocks.": "decoder.decoder_layers.",
    }
    parts = {
        ".norm1.": ".layernorm_before.", ".norm2.": ".layernorm_after.",
        ".attn.proj.": ".attention.output.dense.", ".mlp.fc1.": ".intermediate.dense.",
        ".mlp.fc2.": ".output.dense.",
    }  # fmt: skip
    out = {}
    for ours, value in state.items():
        key = ours
        for old, new in names.items():
            key = new + key.removeprefix(old) if key.startswith(old) else key
        for old, new in parts.items():
            key = key.replace(old, new)
        stem = key.partition(".attn.qkv.")[0] + ".attention.attention."
        if key.endswith(".attn.qkv.weight"):
            for name, part in zip(("query", "key", "value"), value.chunk(3), strict=True):
                out[f"{stem}{name}.weight"] = part
        elif key.endswith(".attn.qkv.bias"):
            out[f"{stem}query.bias"], _, out[f"{stem}value.bias"] = value.chunk(3)
        else:
            out[key] = value
    return out


def test_the_prediction_knows_nothing_of_hidden_pixels():
    """Noise on all hidden patches, and only there."""
    model, video, mask = autoencoder(), clips(), tubes()
    other = video.clone()
    for b in range(2):
        for token in mask[b].nonzero().flatten().tolist():
            pixels_of(other, b, token).normal_()
    assert not torch.equal(video, other)
    assert torch.equal(model(video, mask)[1], model(other, mask)[1])
    assert torch.equal(model.encode(video, mask), model.encode(other, mask))
    pixels_of(other, 0, int((~mask[0]).nonzero()[0])).normal_()
    changed = (model(video, mask)[1] - model(other, mask)[1]).abs().amax(dim=(1, 2))
    assert changed[0] > 1e-3 and changed[1] == 0


def test_the_encoder_works_on_visible_tokens_only():
    """The lengths that reach its blocks and the decoder's, with one and with two masks."""
    model, lengths = autoencoder(), []
    for blocks in (model.encoder.blocks, model.decoder.blocks):
        blocks[0].register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    model(clips(), tubes())
    model(clips(), tubes(), running_cell_mask(STEPS, (GRID, GRID), 0.25, seeds=[0, 1]))
    assert lengths == [16, 64, 16, 16 + 16]


def test_the_mask_of_a_neighbour_changes_nothing():
    model, video = autoencoder(), clips()
    loss, _ = model(video, tubes())
    alone, _ = model(video[:1], tubes(1))
    torch.testing.assert_close(loss[:1], alone, atol=1e-12, rtol=0)


def test_a_decoder_mask_chooses_what_is_predicted():
    """Rows come in the tokens' order; what the encoder saw may be asked for but weighs nothing."""
    model, video, mask = autoencoder(), clips(), tubes()
    decode = running_cell_mask(STEPS, (GRID, GRID), 0.5, seeds=[0, 1])
    loss, prediction = model(video, mask, decode)
    assert prediction.shape == (2, TOKENS // 2, 2 * PATCH * PATCH * 3)
    assert (decode & ~mask).any(dim=1).all()
    targets = model._targets(patchify(video, 2, (PATCH, PATCH)))
    wanted = decode.nonzero()[:, 1].view(2, -1)
    model.decoder.forward = lambda *_: torch.where(
        (mask & decode)[torch.arange(2)[:, None], wanted][:, :, None],
        targets[torch.arange(2)[:, None], wanted],
        1e3,
    )
    assert loss.min() > 0.1 and model(video, mask, decode)[0].max() < 1e-20


def test_every_parameter_gets_a_gradient():
    model = autoencoder()
    model(clips(), tubes())[0].sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 1e-9, name


def test_the_gradient_is_that_of_finite_differences():
    """Of the loss by the mask token and by one kernel entry."""
    model, video, mask = autoencoder(), clips(), tubes()
    loss = model(video, mask)[0].sum()
    loss.backward()
    for parameter in (model.mask_token, model.encoder.patch_embed.proj.weight):
        values, gradient = parameter.data.view(-1), parameter.grad.view(-1)
        for entry in (0, 7):
            before = values[entry].item()
            sides = []
            for step in (1e-5, -1e-5):
                values[entry] = before + step
                sides.append(model(video, mask)[0].sum().item())
            values[entry] = before
            assert (sides[0] - sides[1]) / 2e-5 == pytest.approx(gradient[entry].item(), rel=1e-4)


@pytest.mark.parametrize("normalise", [True, False])
def test_reconstruction_copies_what_is_visible_and_draws_the_rest(normalise):
    """Hidden patches by hand: prediction times deviation plus mean of the true patch."""
    model, video, mask = autoencoder(normalise_targets=normalise), clips(), tubes()
    drawn = model.reconstruct(video, mask)
    _, prediction = model(video, mask)
    assert drawn.shape == video.shape and not drawn.requires_grad
    std, mean = (torch.tensor(v, dtype=torch.float64) for v in (STD, MEAN))
    for b in range(2):
        hidden = mask[b].nonzero().flatten().tolist()
        for token in range(TOKENS):
            given, got = pixels_of(video, b, token), pixels_of(drawn, b, token)
            if token not in hidden:
                assert torch.equal(given, got)
                continue
            patch = prediction[b, hidden.index(token)].view(-1, 3)
            if normalise:
                true = given.reshape(-1, 3) * std + mean
                patch = patch * (true.std(dim=0) + 1e-6) + true.mean(dim=0)
            wanted = ((patch - mean) / std).view(2, PATCH, PATCH, 3)
            torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-6)


def test_a_perfect_prediction_reconstructs_the_clip():
    """The targets themselves as prediction: loss 0, and the clip comes back."""
    model, video, mask = autoencoder(), clips(), tubes()
    targets = model._targets(patchify(video, 2, (PATCH, PATCH)))
    hidden = mask.nonzero()[:, 1].view(2, -1)
    model.decoder.forward = lambda *_: targets[torch.arange(2)[:, None], hidden]
    assert model(video, mask)[0].abs().max() < 1e-20
    torch.testing.assert_close(model.reconstruct(video, mask), video, atol=1e-6, rtol=0)


def test_patches_come_back_as_the_clip():
    """And each holds the pixels cut by hand, colours first."""
    video = clips()[..., :16]
    patches = patchify(video, 2, (8, 4))
    assert patches.shape == (2, 4 * 4 * 4, 3, 2 * 8 * 4)
    assert torch.equal(unpatchify(patches, 2, (8, 4), (32, 16)), video)
    assert torch.equal(patches[1, 16 + 4 * 2 + 3].view(3, 2, 8, 4), video[1, :, 2:4, 16:24, 12:16])


def classifier():
    vit = encoder(fc_norm=True, num_classes=5)
    return JointModel(vit, frames=FRAMES, tubelet=2, positions="sine").double().eval()


def test_the_classifier_takes_the_encoder_and_has_its_output_on_all_tokens(tmp_path):
    """Only the norm after pooling and the classifier start anew."""
    model, network, video = autoencoder(), classifier(), clips()
    torch.save(model.state_dict(), tmp_path / "last.pt")
    head = ("fc_norm.weight", "fc_norm.bias")
    assert load_into(network, tmp_path / "last.pt").missing == [f"backbone.{key}" for key in head]
    tokens = network.tokens(video)
    torch.testing.assert_close(model.encoder.norm(tokens), model.encode(video), atol=1e-10, rtol=0)
    pooled = network.backbone.fc_norm(tokens.mean(dim=1))
    torch.testing.assert_close(network.embed(video), pooled, atol=1e-10, rtol=0)


def test_the_classifier_is_that_of_transformers():
    transformers = pytest.importorskip("transformers")
    network, video = classifier(), clips()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    config = reference_config(transformers, num_labels=5)
    config.use_mean_pooling = True
    theirs = transformers.VideoMAEForVideoClassification(config).double().eval()
    theirs.fc_norm.eps = 1e-6
    state = reference_names(network.state_dict(), encoder="backbone.")
    for ours, name in (("backbone.fc_norm", "fc_norm"), ("backbone.head", "classifier")):
        for kind in ("weight", "bias"):
            state[f"{name}.{kind}"] = state.pop(f"{ours}.{kind}")
    load_reference(theirs, state)
    logits = theirs(video.transpose(1, 2)).logits
    torch.testing.assert_close(network(video), logits, atol=1e-6, rtol=0)


def test_the_published_encoder_and_decoder_sizes():
    """ViT-B: keys and shapes of VideoMAE's weights, q_bias and v_bias apart."""
    with torch.device("meta"):
        vit = plain_encoder("vit_base_patch16_224", size=224)
        assert (
            plain_encoder("vit_base_patch16_224", size=96, patch=8).patch_embed.num_patches == 144
        )
        model = MaskedAutoencoder(vit, frames=16, mean=MEAN, std=STD)
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert shapes["encoder.patch_embed.proj.weight"] == (768, 3, 2, 16, 16)
    assert shapes["encoder.blocks.11.attn.qkv.weight"] == (2304, 768)
    assert shapes["encoder.norm.bias"] == (768,)
    assert shapes["encoder_to_decoder.weight"] == (384, 768)
    assert shapes["mask_token"] == (1, 1, 384)
    assert shapes["decoder.blocks.3.mlp.fc1.weight"] == (1536, 384)
    assert shapes["decoder.norm.weight"] == (384,)
    assert shapes["decoder.head.weight"] == (1536, 384)
    top = {key.split(".")[0] for key in shapes}
    assert top == {"encoder", "encoder_to_decoder", "mask_token", "decoder"}
    assert {k.split(".")[1] for k in shapes if k.startswith("encoder.")} == {
        "patch_embed", "blocks", "norm"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: MaskedAutoencoder(encoder(), frames=7, mean=MEAN, std=STD), "7 frames .* of 2"),
        (lambda: MaskedAutoencoder(encoder(fc_norm=True), frames=8, mean=MEAN, std=STD), "no norm"),
        (
            lambda: MaskedAutoencoder(encoder(class_token=True), frames=8, mean=MEAN, std=STD),
            "1 class or register tokens",
        ),
        (lambda: plain_encoder("resnet18", size=32), "resnet18 cannot be made .*img_size"),
        (lambda: plain_encoder("deit_tiny_distilled_patch16_224", size=32), "deit.* cannot be"),
    ],
)
def test_encoders_that_cannot_be_masked_are_refused(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


def test_masks_and_clips_of_other_shapes_are_refused():
    model, video, mask = autoencoder(), clips(), tubes()
    uneven = mask.clone()
    uneven[0, int(mask[0].nonzero()[0])] = False
    with pytest.raises(ValueError, match=r"\[16, 17\] visible tokens"):
        model(video, uneven)
    with pytest.raises(ValueError, match=r"\[0\] visible tokens"):
        model(video, torch.ones_like(mask))
    with pytest.raises(ValueError, match=r"\[0\] decoded tokens"):
        model(video, torch.zeros_like(mask))
    with pytest.raises(ValueError, match=r"shape \[2, 63\] for clips of 64"):
        model(video, mask[:, 1:])
    with pytest.raises(ValueError, match="6 frames for a network made for 8"):
        model(video[:, :, :6], mask)
    with pytest.raises(ValueError, match="32×24 pixels"):
        model(video[..., :24], mask)
