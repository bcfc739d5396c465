"""Published names: each project's file gives the outputs that the project's own network gives."""

import math
from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from published import (
    NON_LOCAL,
    SETTINGS,
    TEXT_B16,
    VIT_B16,
    Text,
    Vit,
    avion,
    clip,
    fill,
    lavila,
    openai,
    resnet,
    tsm,
    tsm_mobilenet,
    videomae_finetune,
    videomae_pretrain,
)
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn

from matinee.errors import ConfigError
from matinee.models.dual import DualEncoder
from matinee.models.frames import FrameModel
from matinee.models.inflate import inflate
from matinee.models.joint import JointModel
from matinee.models.masked import MaskedAutoencoder, plain_encoder
from matinee.models.non_local import add_non_local
from matinee.models.shift import add_temporal_shift
from matinee.models.text import ClipText
from matinee.models.weights import load_into, traits_of
from matinee.models.weights.detect import translate
from matinee.models.weights.files import WeightsFile
from matinee.models.weights.names import canonical_names

open_clip = pytest.importorskip("open_clip")

VIT, TEXT = Vit(), Text()


def save(state, tmp_path, name="w.pth", **more):
    path = tmp_path / name
    torch.save({"state_dict": state, "epoch": 3, **more} if more else state, path)
    return path


def timm_vit(vit=VIT, *, clip=True, quick=False, eps=1e-6, image=None, **more):
    """As timm builds its `clip` networks, or plain ones, in small."""
    act = timm.layers.get_act_layer("quick_gelu" if quick else "gelu")
    return VisionTransformer(
        img_size=image or vit.image, patch_size=vit.patch, embed_dim=vit.width, depth=vit.layers,
        num_heads=vit.heads, pre_norm=clip, act_layer=act, num_classes=more.pop("num_classes", 0),
        norm_layer=partial(torch.nn.LayerNorm, eps=eps), **more,
    )  # fmt: skip


def dual(*, frames, quick=False, eps=1e-6, embed=VIT.embed, **joint):
    video = JointModel(timm_vit(quick=quick, eps=eps), frames=frames, **joint)
    text = ClipText(width=TEXT.width, heads=TEXT.heads, layers=TEXT.layers, quick_gelu=quick)
    return DualEncoder(video, text, embed_dim=embed).eval()


def tokens():
    ids = torch.randint(1, 400, (3, 77), generator=torch.Generator().manual_seed(2))
    ids[:, 9] = 49407  # the end of the text
    return ids


def noise(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


# --- a transformer in float64, from the papers ---

CLIP_NAMES = ("ln_1", "attn.in_proj_", "attn.out_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
FLASH_NAMES = ("ln_1", "attn.Wqkv.", "attn.out_proj", "ln_2", "mlp.fc1", "mlp.fc2")
TIMM_NAMES = ("norm1", "attn.qkv.", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")


def norm(x, p, name, eps):
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / (var + eps).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]


def linear(x, p, name):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)


def blocks(x, p, prefix, names, *, layers, heads, eps=1e-6, act=F.gelu, causal=False):
    """Pre-norm transformer blocks with explicit attention; q_bias and v_bias if there are any."""
    norm1, qkv, proj, norm2, first, second = names
    for i in range(layers):
        at = f"{prefix}{i}."
        if f"{at}attn.q_bias" in p:
            q_bias, v_bias = p[f"{at}attn.q_bias"], p[f"{at}attn.v_bias"]
            bias = torch.cat([q_bias, torch.zeros_like(q_bias), v_bias])
        else:
            bias = p[f"{at}{qkv}bias"]
        y = norm(x, p, at + norm1, eps) @ p[f"{at}{qkv}weight"].T + bias
        q, k, v = y.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if causal:
            length = scores.shape[-1]
            above = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(above, float("-inf"))
        x = x + linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), p, at + proj)
        x = x + linear(act(linear(norm(x, p, at + norm2, eps), p, at + first)), p, at + second)
    return x


def double(state):
    return {k.removeprefix("module."): v.double() for k, v in state.items()}


def cut(video, patch, tubelet=1):
    """[B, 3, T, H, W] → [B, T'·N, 3·tubelet·p·p], loops over places."""
    _, _, frames, height, width = video.shape
    return torch.stack(
        [
            video[:, :, t : t + tubelet, y : y + patch, x : x + patch].flatten(1)
            for t in range(0, frames, tubelet)
            for y in range(0, height, patch)
            for x in range(0, width, patch)
        ],
        dim=1,
    )


def table(tokens, width):
    return torch.tensor(
        [
            [(math.cos if j % 2 else math.sin)(n / 10000 ** (j // 2 * 2 / width))
             for j in range(width)]
            for n in range(tokens)
        ],
        dtype=torch.float64,
    )  # fmt: skip


def clip_text(p, ids, prefix="", act=F.gelu):
    x = p[f"{prefix}token_embedding.weight"][ids] + p[f"{prefix}positional_embedding"]
    x = blocks(
        x, p, f"{prefix}transformer.resblocks.", CLIP_NAMES, layers=TEXT.layers, heads=TEXT.heads,
        eps=1e-5, act=act, causal=True,
    )  # fmt: skip
    x = norm(x, p, f"{prefix}ln_final", 1e-5)
    return x[torch.arange(len(ids)), ids.argmax(1)] @ p[f"{prefix}text_projection"]


# --- CLIP ---


@pytest.mark.parametrize("kind", ["openai", "open_clip", "custom text"])
def test_a_dual_encoder_from_clip_gives_open_clips_embeddings(tmp_path, kind):
    quick = kind == "openai"
    make = open_clip.model.CustomTextCLIP if kind == "custom text" else open_clip.model.CLIP
    theirs = make(
        embed_dim=VIT.embed,
        vision_cfg={"layers": VIT.layers, "width": VIT.width, "head_width": VIT.width // VIT.heads,
                    "patch_size": VIT.patch, "image_size": VIT.image},
        text_cfg={"width": TEXT.width, "heads": TEXT.heads, "layers": TEXT.layers},
        quick_gelu=quick,
    ).eval()  # fmt: skip
    state = fill(clip(text_prefix="text." if kind == "custom text" else ""))
    if kind == "openai":
        state = openai(state)
    theirs.load_state_dict({k: v.float() for k, v in state.items() if k not in SETTINGS})
    model = dual(frames=2, quick=quick, eps=1e-5)
    report = load_into(model, save(state, tmp_path))
    assert (report.share, report.missing, report.unexpected) == (1, [], [])
    untold = "the file does not say whether it was trained with GELU or QuickGELU"
    notes = [f"{untold}; this network's {tower} tower has GELU" for tower in ("vision", "text")]
    assert report.notes == ([] if quick else notes)
    assert report.layout == "CLIP"
    image, ids = noise(3, 3, 32, 32), tokens()
    with torch.no_grad():
        video = model.embed_video(image[:, :, None].repeat(1, 1, 2, 1, 1))
        torch.testing.assert_close(video, theirs.encode_image(image, normalize=True))
        torch.testing.assert_close(model.embed_text(ids), theirs.encode_text(ids, normalize=True))
        assert model.scale() == theirs.logit_scale.exp()


def test_a_bare_timm_vit_from_clip_is_timms_own_reading_of_the_file(tmp_path):
    state = fill(clip())
    ours, theirs = timm_vit().eval(), timm_vit(num_classes=VIT.embed).eval()
    theirs.load_state_dict(checkpoint_filter_fn(dict(state), theirs))
    report = load_into(ours, save(state, tmp_path), min_match=1.0)
    x = noise(2, 3, 32, 32)
    assert torch.equal(ours.forward_features(x), theirs.forward_features(x))
    assert report.layout == "CLIP"


def test_openai_files_say_quick_gelu_and_a_gelu_network_is_told(tmp_path):
    path = save(openai(fill(clip())), tmp_path)
    assert traits_of(path).activation == "QuickGELU"
    report = load_into(dual(frames=2, quick=False), path)
    assert report.notes == [
        "trained with QuickGELU, this network's vision tower has GELU",
        "trained with QuickGELU, this network's text tower has GELU",
    ]


def test_half_precision_alone_does_not_make_a_file_openais(tmp_path):
    """open_clip saves in it too, of networks with either activation."""
    path = save({key: value.half() for key, value in fill(clip()).items()}, tmp_path)
    assert traits_of(path).activation is None
    for quick, name in ((False, "GELU"), (True, "QuickGELU")):
        notes = load_into(dual(frames=2, quick=quick), path).notes
        assert [note.split("; ")[1] for note in notes] == [
            f"this network's {tower} tower has {name}" for tower in ("vision", "text")
        ]


def test_a_projection_of_another_size_starts_anew_and_is_said(tmp_path):
    model = dual(frames=2, embed=20)
    before = model.video_projection.detach().clone()
    report = load_into(model, save(fill(clip()), tmp_path))
    assert torch.equal(model.video_projection, before)
    assert dict(report.changed).keys() == {
        "video_projection", "text_projection", "video.temporal_embed"
    }  # fmt: skip
    assert "[32, 12] there" in dict(report.changed)["video_projection"]
    assert report.share == 1


def test_clip_weights_in_a_network_without_its_first_norm_are_refused(tmp_path):
    path = save(fill(clip()), tmp_path)
    with pytest.raises(ConfigError, match=r"norm_pre.*vit_base_patch16_clip_224"):
        load_into(JointModel(timm_vit(clip=False), frames=2), path)


# --- timm and TSM ---


def shift_naively(x, frames, divisor=8):
    out, fold = x.clone(), x.shape[1] // divisor
    for i in range(len(x)):
        t = i % frames
        out[i, :fold] = x[i + 1, :fold] if t + 1 < frames else 0
        out[i, fold : 2 * fold] = x[i - 1, fold : 2 * fold] if t > 0 else 0
    return out


def shifted(convolutions, frames):
    for conv in convolutions:
        conv.register_forward_pre_hook(lambda _, args: (shift_naively(args[0], frames),))


def small_resnets(layers, classes=6):
    torchvision = pytest.importorskip("torchvision")
    theirs = torchvision.models.ResNet(
        torchvision.models.resnet.Bottleneck, layers, num_classes=classes
    )
    ours = timm.models.resnet.ResNet(timm.models.resnet.Bottleneck, layers, num_classes=classes)
    ours.pretrained_cfg = {"classifier": "fc"}
    theirs.load_state_dict(fill(resnet(layers, classes=classes)))
    return ours.eval(), theirs.eval()


@pytest.mark.parametrize("order", ["shift, then load", "load, then shift"])
def test_a_tsm_file_gives_tsms_logits(tmp_path, order):
    """torchvision's own ResNet with a shift written as loops, logits averaged over frames."""
    ours, theirs = small_resnets([1, 2, 1, 1])
    path = save(tsm(theirs.state_dict()), tmp_path, arch="resnet50")
    if order == "shift, then load":
        add_temporal_shift(ours, 4)
        model = FrameModel(ours, 4).eval()
        report = load_into(model, path)
        assert report.layout == "TSM" and report.classifier == "loaded" and report.share == 1
        assert "backbone.layer1.0.conv1.conv.weight" in report.matched
    else:
        assert load_into(ours, path, min_match=1.0).classifier == "loaded"
        add_temporal_shift(ours, 4)
        model = FrameModel(ours, 4).eval()
    shifted([m.conv1 for m in theirs.modules() if hasattr(m, "conv3")], 4)
    video = noise(2, 3, 4, 64, 64)
    with torch.no_grad():
        expected = theirs(video.transpose(1, 2).flatten(0, 1)).view(2, 4, -1).mean(1)
        torch.testing.assert_close(model(video), expected, rtol=1e-4, atol=1e-5)


def test_a_tsm_file_with_non_local_blocks_gives_their_logits(tmp_path):
    ours, theirs = small_resnets([1, 3, 5, 1])  # the least with all five places
    state = tsm(theirs.state_dict(), non_local=True)
    path = save(state, tmp_path, arch="resnet50")
    add_temporal_shift(ours, 4)
    plain = FrameModel(ours, 4)
    with pytest.raises(ConfigError, match=r"0 keys are missing.*unknown.*\.nl\."):
        load_into(plain, path)
    add_non_local(ours, 4)
    model = FrameModel(ours, 4).eval()
    assert load_into(model, path).share == 1
    shifted([m.conv1 for m in theirs.modules() if hasattr(m, "conv3")], 4)
    p = double(state)
    for name in NON_LOCAL:
        prefix = f"base_model.{name}.nl."
        theirs.get_submodule(name).register_forward_hook(
            lambda _, args, out, prefix=prefix: non_local(out, p, prefix, 4)
        )
    video = noise(2, 3, 4, 64, 64)
    with torch.no_grad():
        expected = theirs(video.transpose(1, 2).flatten(0, 1)).view(2, 4, -1).mean(1)
        torch.testing.assert_close(model(video), expected, rtol=1e-4, atol=1e-4)


def non_local(x, p, prefix, frames):
    """Embedded Gaussian over all places of a clip, keys and values pooled 2×2, in float64."""

    def conv(name, pool):
        kernel, bias = p[f"{prefix}{name}.weight"], p[f"{prefix}{name}.bias"]
        y = F.conv3d(clips, kernel, bias)
        return (F.max_pool3d(y, (1, 2, 2)) if pool else y).flatten(2)  # [B, C, N]

    clips = x.double().view(-1, frames, *x.shape[1:]).transpose(1, 2)
    weights = (conv("theta", False).mT @ conv("phi.0", True)).softmax(-1)
    y = (weights @ conv("g.0", True).mT).mT.reshape(len(clips), -1, *clips.shape[2:])
    y = F.conv3d(y, p[f"{prefix}W.0.weight"], p[f"{prefix}W.0.bias"])
    mean, var = (p[f"{prefix}W.1.running_{k}"][:, None, None, None] for k in ("mean", "var"))
    scale, shift = (p[f"{prefix}W.1.{k}"][:, None, None, None] for k in ("weight", "bias"))
    z = (y - mean) / (var + 1e-5).sqrt() * scale + shift + clips
    return z.transpose(1, 2).flatten(0, 1).to(x.dtype)


def test_a_tsm_mobilenet_gives_its_logits(tmp_path):
    torchvision = pytest.importorskip("torchvision")
    theirs = torchvision.models.mobilenet_v2(num_classes=5).eval()
    for module in theirs.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
    ours = timm.create_model("mobilenetv2_100", num_classes=5)
    add_temporal_shift(ours, 2)
    model = FrameModel(ours, 2).eval()
    path = save(tsm_mobilenet(theirs.state_dict()), tmp_path, arch="mobilenetv2")
    report = load_into(model, path)
    assert report.share == 1 and report.classifier == "loaded"
    residual = [m for m in theirs.features if getattr(m, "use_res_connect", False)]
    shifted([m.conv[0][0] for m in residual], 2)
    video = noise(2, 3, 2, 64, 64)
    with torch.no_grad():
        expected = theirs(video.transpose(1, 2).flatten(0, 1)).view(2, 2, -1).mean(1)
        torch.testing.assert_close(model(video), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("init", ["center", "average"])
def test_image_weights_load_after_an_inflation_as_before_it(tmp_path, init):
    source, before, after = (
        timm.create_model("mobilenetv3_small_050", num_classes=3) for _ in range(3)
    )
    path = save(source.state_dict(), tmp_path)
    load_into(before, path, min_match=1.0)
    for network in (before, after):
        inflate(network, 4, kernel="3x3x3", init=init)
    report = load_into(FrameModel(after, 4), path, min_match=1.0)
    for mine, theirs in zip(after.state_dict().values(), before.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    assert f"over 3 frames ({init})" in report.changed[0][1]


def test_a_deeper_networks_file_is_refused(tmp_path):
    """Every tensor of the shallow network is there; what lies between them is not."""
    ours, _ = small_resnets([1, 1, 1, 1])
    path = save(fill(resnet([1, 2, 3, 1], classes=6)), tmp_path)
    with pytest.raises(ConfigError, match=r"0 keys are missing.*unknown.*layer2\.1"):
        load_into(FrameModel(ours, 2), path)


def test_a_run_loads_into_a_network_with_other_wrappers(tmp_path):
    """TSM, residual and in-place, and frame by frame: one set of weights."""
    nets = {}
    for kind in ("residual", "in-place", "none"):
        backbone = timm.create_model("mobilenetv3_small_050", num_classes=3)
        if kind != "none":
            add_temporal_shift(backbone, 4, placement=kind)
        nets[kind] = FrameModel(backbone, 4)
    assert len({tuple(net.state_dict()) for net in nets.values()}) == 3
    for source, network in nets.items():
        path = save(network.state_dict(), tmp_path, f"{source}.pt", step=4)
        for target in nets.values():
            for value in target.state_dict().values():
                value.zero_()
            report = load_into(target, path, min_match=1.0)
            assert (report.layout, report.missing, report.unexpected) == ("matinee", [], [])
            assert report.classifier == "loaded"
            saved = torch.load(path, weights_only=True)["state_dict"]
            for mine, theirs in zip(target.state_dict().values(), saved.values(), strict=True):
                assert torch.equal(mine, theirs)


# --- AVION ---


def avion_video(p, video):
    """AVION's tower, from its description: one class token, positions of place plus frame."""
    frames = video.shape[2]
    x = cut(video.double(), VIT.patch) @ p["visual.conv1.weight"].T
    place = p["visual.positional_embedding"]
    time = p["visual.temporal_embedding"].repeat_interleave(VIT.patches, 0)
    x = x + place[1:].repeat(frames, 1) + time
    first = (p["visual.class_embedding"] + place[0]).expand(len(x), 1, -1)
    x = norm(torch.cat([first, x], 1), p, "visual.ln_pre", 1e-6)
    at = "visual.transformer.resblocks."
    x = blocks(x, p, at, FLASH_NAMES, layers=VIT.layers, heads=VIT.heads)
    return norm(x[:, 0], p, "visual.ln_post", 1e-6)


def test_an_avion_file_gives_avions_embeddings(tmp_path):
    state = fill(avion(frames=4))
    model = dual(frames=4, class_token="clip")
    report = load_into(model, save(state, tmp_path, scaler={}))
    assert report.layout == "AVION"
    assert (report.share, report.missing, report.unexpected, report.notes) == (1, [], [], [])
    p, video, ids = double(state), noise(2, 3, 4, 32, 32), tokens()
    expected = avion_video(p, video) @ p["visual.image_projection"]
    with torch.no_grad():
        got = model.embed_video(video)
        torch.testing.assert_close(got.double(), F.normalize(expected, dim=1), rtol=1e-4, atol=1e-5)
        text = F.normalize(clip_text(p, ids, "textual."), dim=1)
        torch.testing.assert_close(model.embed_text(ids).double(), text, rtol=1e-4, atol=1e-5)


def test_a_fine_tuned_avion_file_gives_its_logits(tmp_path):
    state = fill(avion(frames=4, classes=7))
    vit = timm_vit(num_classes=7)
    vit.pretrained_cfg = {"classifier": "head"}
    model = JointModel(vit, frames=4, class_token="clip").eval()
    report = load_into(model, save(state, tmp_path, scaler={}))
    assert report.share == 1 and report.classifier == "loaded"
    p, video = double(state), noise(2, 3, 4, 32, 32)
    with torch.no_grad():
        expected = linear(avion_video(p, video), p, "fc_cls")
        torch.testing.assert_close(model(video).double(), expected, rtol=1e-4, atol=1e-5)


def test_other_frames_and_another_input_size_are_interpolated_and_said(tmp_path):
    state = fill(avion(frames=4))
    model = JointModel(timm_vit(image=48), frames=8)
    report = load_into(model, save(state, tmp_path, scaler={}))
    changed = dict(report.changed)
    assert changed["temporal_embed"] == "4 → 8 frames"
    assert changed["backbone.pos_embed"] == "4×4 → 6×6 patches"
    assert "one class token a clip" in report.notes[0]
    assert any(key.endswith("token_embedding.weight") for key in report.aside)
    rows = state["module.visual.temporal_embedding"]
    expected = F.interpolate(rows.T[None], size=8, mode="linear")[0].T
    torch.testing.assert_close(model.temporal_embed[0], expected)
    theirs = timm.layers.resample_abs_pos_embed(
        state["module.visual.positional_embedding"][None], new_size=[6, 6]
    )
    torch.testing.assert_close(model.backbone.pos_embed, theirs)


def test_an_image_kernel_becomes_a_tubelets(tmp_path):
    state = fill(clip())
    model = JointModel(timm_vit(), frames=4, tubelet=2)
    report = load_into(model, save(state, tmp_path))
    kernel = model.backbone.patch_embed.proj.weight
    half = state["visual.conv1.weight"] / 2
    assert torch.equal(kernel[:, :, 0], half) and torch.equal(kernel[:, :, 1], half)
    assert "1/2 in each" in dict(report.changed)["backbone.patch_embed.proj.weight"]


# --- LaViLa ---


def test_lavilas_attention_over_time_has_no_place_and_is_refused(tmp_path):
    path = save(fill(lavila(frames=4)), tmp_path, scaler={})
    with pytest.raises(ConfigError, match=r"unknown.*timeattn.*no place in joint attention"):
        load_into(JointModel(timm_vit(quick=True), frames=4), path)


def test_lavila_without_attention_over_time_is_clip_on_one_frame(tmp_path):
    """As it starts: keys and values of time are zero. Then one frame is an image."""
    state = fill(lavila(frames=1))
    for key, value in state.items():
        if ".timeattn.qkv." in key or key.endswith("timeattn.proj.bias"):
            value.zero_()
    model = dual(frames=1, quick=True, class_token="clip")
    path = save(state, tmp_path, scaler={})
    report = load_into(model, path, min_match=0.5)
    assert report.layout == "LaViLa" and not report.missing
    assert all("timeattn" in key or "norm3" in key for key in report.unexpected)
    assert len(report.unexpected) == 6 * VIT.layers and 0.5 < report.share < 0.99
    p, video, ids = double(state), noise(2, 3, 1, 32, 32), tokens()
    x = cut(video.double(), VIT.patch) @ p["visual.patch_embed.proj.weight"].flatten(1).T
    x = x + p["visual.temporal_embed"]
    x = torch.cat([p["visual.cls_token"].expand(2, -1, -1), x], 1) + p["visual.pos_embed"]
    x = norm(x, p, "visual.ln_pre", 1e-6)
    at = "visual.blocks."
    x = blocks(x, p, at, TIMM_NAMES, layers=VIT.layers, heads=VIT.heads, act=quick_gelu)
    x = norm(x, p, "visual.norm", 1e-6)[:, 0] @ p["image_projection"]
    with torch.no_grad():
        got = model.embed_video(video).double()
        torch.testing.assert_close(got, F.normalize(x, dim=1), rtol=1e-4, atol=1e-5)
        text = F.normalize(clip_text(p, ids, act=quick_gelu), dim=1)
        torch.testing.assert_close(model.embed_text(ids).double(), text, rtol=1e-4, atol=1e-5)


# --- VideoMAE ---


def mae_encoder(p, video, keep=None, prefix="encoder."):
    kernel = p[f"{prefix}patch_embed.proj.weight"].flatten(1)
    x = cut(video.double(), VIT.patch, 2) @ kernel.T + p[f"{prefix}patch_embed.proj.bias"]
    x = x + table(x.shape[1], VIT.width)
    x = x if keep is None else x[:, keep]
    names = FLASH_NAMES if f"{prefix}blocks.0.attn.Wqkv.weight" in p else TIMM_NAMES
    names = ("norm1", names[1], names[2], "norm2", "mlp.fc1", "mlp.fc2")
    return blocks(x, p, f"{prefix}blocks.", names, layers=VIT.layers, heads=VIT.heads)


def mean_pooled(frames=4, classes=5):
    vit = timm_vit(clip=False, class_token=False, global_pool="avg", num_classes=classes)
    vit.pretrained_cfg = {"classifier": "head"}
    return JointModel(vit, frames=frames, tubelet=2, positions="sine").eval()


def test_a_pretrained_videomae_file_predicts_as_videomae(tmp_path):
    state = fill(videomae_pretrain(decoder_width=24, decoder_layers=2))
    encoder = timm_vit(clip=False, class_token=False, global_pool="avg", fc_norm=False)
    model = MaskedAutoencoder(
        encoder, frames=4, mean=(0.5,) * 3, std=(0.5,) * 3,
        decoder_depth=2, decoder_width=24, decoder_heads=2,
    ).eval()  # fmt: skip
    path = tmp_path / "checkpoint.pth"
    torch.save({"model": state, "epoch": 799}, path)
    report = load_into(model, path)
    assert report.layout == "VideoMAE"
    assert (report.share, report.missing, report.unexpected) == (1, [], [])
    p, video = double(state), noise(2, 3, 4, 32, 32)
    hidden = torch.arange(32) % 3 != 0
    seen = norm(mae_encoder(p, video, ~hidden), p, "encoder.norm", 1e-6)
    seen = seen @ p["encoder_to_decoder.weight"].T
    places = table(32, 24)
    masks = (p["mask_token"] + places[hidden]).expand(2, -1, -1)
    x = torch.cat([seen + places[~hidden], masks], 1)
    x = blocks(x, p, "decoder.blocks.", TIMM_NAMES, layers=2, heads=2)
    expected = linear(norm(x[:, -int(hidden.sum()) :], p, "decoder.norm", 1e-6), p, "decoder.head")
    with torch.no_grad():
        _, got = model(video, hidden.expand(2, -1))
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["model", "module", "avion"])
def test_a_fine_tuned_videomae_file_gives_its_logits(tmp_path, kind):
    """V1 keeps it under `model`, DeepSpeed (V2) under `module`, AVION has its fast layers."""
    state = fill(videomae_finetune(avion=kind == "avion"))
    path = tmp_path / "w.pth"
    torch.save({"model" if kind == "avion" else kind: state}, path)
    model = mean_pooled()
    report = load_into(model, path, min_match=1.0)
    assert report.layout == "VideoMAE" and report.classifier == "loaded" and not report.changed
    p, video = double(state), noise(2, 3, 4, 32, 32)
    features = norm(mae_encoder(p, video, prefix="").mean(1), p, "fc_norm", 1e-6)
    with torch.no_grad():
        torch.testing.assert_close(
            model(video).double(), linear(features, p, "head"), rtol=1e-4, atol=1e-5
        )


def test_a_pretrained_videomae_encoder_starts_a_fine_tuning(tmp_path):
    """The decoder stays aside, the encoder's own last norm too: pooling has a new one."""
    state = fill(videomae_pretrain())
    model = mean_pooled()
    report = load_into(model, save(state, tmp_path))
    assert set(report.missing) == {"backbone.fc_norm.weight", "backbone.fc_norm.bias"}
    assert set(report.unexpected) == {"encoder.norm.weight", "encoder.norm.bias"}
    assert report.classifier == "new" and len(report.aside) == 1 + 1 + 12 * 2 + 4
    p, video = double(state), noise(2, 3, 4, 32, 32)
    with torch.no_grad():
        expected = mae_encoder(p, video)
        torch.testing.assert_close(model.tokens(video).double(), expected, rtol=1e-4, atol=1e-5)


# --- full size ---


def shapes(network):
    return {key: value.shape for key, value in network.state_dict().items()}


def test_full_size_names_and_shapes_of_vit_b16_and_resnet50(tmp_path):
    """Every tensor of timm's and open_clip's networks and of VideoMAE's, and no other."""
    with torch.device("meta"):
        vit = timm.create_model("vit_base_patch16_clip_224", num_classes=0)
        text = open_clip.transformer.TextTransformer(output_dim=512)
        cnn = timm.create_model("resnet50")
    expected = {f"backbone.{k}": s for k, s in shapes(vit).items()}
    expected |= {f"text.{k}": s for k, s in shapes(text).items() if k != "text_projection"}
    expected |= {"text_projection": (512, 512), "video_projection": (768, 512), "logit_scale": ()}
    for published, extra in (
        (clip(VIT_B16, TEXT_B16), {}),
        (avion(VIT_B16, TEXT_B16, frames=16), {"temporal_embed": (1, 16, 768)}),
    ):
        state = {k.removeprefix("module."): v for k, v in fill(published, device="meta").items()}
        found = translate(tmp_path, WeightsFile(state, {})).tensors
        assert {k: tuple(v.shape) for k, v in found.items()} == {
            k: tuple(s) for k, s in (expected | extra).items()
        }
    with torch.device("meta"):
        mae = MaskedAutoencoder(
            plain_encoder("vit_base_patch16_224", size=224), frames=16, mean=(0,) * 3, std=(1,) * 3
        )
    published = videomae_pretrain(VIT_B16, decoder_width=384, decoder_layers=4)
    found = translate(tmp_path, WeightsFile(fill(published, device="meta"), {})).tensors
    own = shapes(mae)
    assert {k: v.shape for k, v in found.items()} == {
        name: own[key] for name, key in canonical_names(mae).items()
    }
    state = tsm(fill(resnet(), device="meta"))
    assert "module.base_model.layer4.2.conv1.net.weight" in state
    state = {k.removeprefix("module."): v for k, v in state.items()}
    found = translate(tmp_path, WeightsFile(state, {})).tensors
    expected = {
        f"backbone.{key}".replace("backbone.fc", "classifier"): shape
        for key, shape in shapes(cnn).items()
    }
    assert {k: v.shape for k, v in found.items()} == expected
