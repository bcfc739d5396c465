"""Published weights: loaded whole, or refused with the keys that do not fit."""

import argparse
import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from published import (
    Text,
    Vit,
    avion,
    clip,
    fill,
    lavila,
    openai,
    tsm_mobilenet,
    videomae_finetune,
    videomae_pretrain,
)
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from matinee.cli import import_
from matinee.errors import ConfigError
from matinee.models.frames import FrameModel
from matinee.models.joint import JointModel
from matinee.models.weights import load_into, read_state_dict, traits_of
from matinee.models.weights.convert import convert_weights
from matinee.models.weights.detect import translate
from matinee.models.weights.files import WeightsFile


@pytest.mark.parametrize("kind", ["pth", "safetensors", "wrapped"])
def test_image_weights_load_from_every_kind_of_file(tmp_path, kind):
    """All tensors but the classifier, which has other classes here."""
    source = timm.create_model("resnet10t", num_classes=10)
    path = tmp_path / f"weights.{'safetensors' if kind == 'safetensors' else 'pth'}"
    if kind == "safetensors":
        save_file(source.state_dict(), path)
    elif kind == "pth":
        torch.save(source.state_dict(), path)
    else:
        state = {f"module.{key}": value for key, value in source.state_dict().items()}
        torch.save({"state_dict": state, "epoch": 3}, path)
    model = timm.create_model("resnet10t", num_classes=4)
    head = model.fc.weight.clone()
    note = load_into(model, path, min_match=1.0).sentence(str(path))
    assert "a new classifier" in note and torch.equal(model.fc.weight, head)
    for key, value in source.state_dict().items():
        if not key.startswith("fc."):
            assert torch.equal(model.state_dict()[key], value), key


def test_the_efficientnet_pytorch_layout_is_understood(tmp_path):
    """Same order, other names: outputs equal those of the source network."""
    source = timm.create_model("tf_efficientnet_lite0", num_classes=4).eval()
    names = iter(range(10_000))
    state = {f"_blocks.{next(names)}": value for value in source.state_dict().values()}
    first = next(iter(state))
    state = {("_conv_stem.weight" if key == first else key): v for key, v in state.items()}
    torch.save(state, tmp_path / "w.pth")
    model = timm.create_model("tf_efficientnet_lite0", num_classes=4).eval()
    assert load_into(model, tmp_path / "w.pth", min_match=1.0).classifier == "loaded"
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(model(x), source(x))


def test_an_efficientnet_without_classifier_takes_the_rest_of_such_a_file(tmp_path):
    source = timm.create_model("tf_efficientnet_lite0", num_classes=4).eval()
    names = {"conv_stem.weight": "_conv_stem.weight", "classifier.weight": "_fc.weight"}
    names["classifier.bias"] = "_fc.bias"
    state = {names.get(k, f"_blocks.{k}"): v for k, v in source.state_dict().items()}
    torch.save(state, tmp_path / "w.pth")
    model = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval()
    assert load_into(model, tmp_path / "w.pth", min_match=1.0).aside == ["_fc.weight", "_fc.bias"]
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(model(x), source.forward_head(source.forward_features(x), pre_logits=True))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("layer1.0.conv1.weight"), r"1 keys are missing.*layer1.0.conv1.weight"),
        (lambda s: s.update(extra=torch.ones(1)), r"1 unknown.*extra"),
        (lambda s: s.update({"conv1.0.weight": torch.ones(1, 1)}), r"for another network"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, change, words):
    """With the first offending keys."""
    state = timm.create_model("resnet10t", num_classes=4).state_dict()
    change(state)
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(ConfigError, match=words):
        network = timm.create_model("resnet10t", num_classes=4)
        load_into(network, tmp_path / "w.pth", min_match=1.0)


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    """And does not run."""

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"x": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(ConfigError, match=r"no file of weights: it asks to run (io|_io)\.open"):
        read_state_dict(tmp_path / "evil.pth")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_the_bookkeeping_of_training_scripts_is_passed_over(tmp_path, zipped):
    """Options, a best accuracy and a path, as published checkpoints hold them beside the weights:
    the classes are not built, whatever they are given."""
    args = argparse.Namespace(lr=0.1, out=Path("runs"))
    state = {"state_dict": {"module.a": torch.ones(3)}, "args": args, "best": np.float64(0.7)}
    torch.save(state, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    assert torch.equal(read_state_dict(tmp_path / "w.pth")["a"], torch.ones(3))


def test_a_torchscript_archive_is_refused_with_the_way_to_convert_it(tmp_path):
    path = tmp_path / "ViT.pt"
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(path))
    with pytest.raises(ConfigError, match=r"TorchScript.*python -c .*torch\.jit\.load") as refused:
        read_state_dict(path)
    command = str(refused.value).split('python -c "')[1].split('"')[0]
    exec(command.replace("'ViT", f"'{tmp_path}/ViT"))
    assert set(read_state_dict(tmp_path / "ViT-weights.pt")) == {"weight", "bias"}


def test_a_view_that_repeats_a_few_numbers_endlessly_is_refused(tmp_path):
    """A file of one kilobyte must not become a tensor of four terabytes."""
    torch.save({"conv1.weight": torch.ones(1).expand(10**6, 10**6)}, tmp_path / "w.pth")
    with pytest.raises(ConfigError, match=r"conv1\.weight.*not that many numbers"):
        read_state_dict(tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "no tensors"),
        ({"state_dict": {}}, "no tensors"),
        ({"epoch": 3, "state_dict": {"a": 1}}, "no state dict"),
        ([torch.ones(1)], "no state dict"),
        ({1: torch.ones(1)}, "no name"),
        ({"a": torch.ones(2, 2).to_sparse()}, "no dense tensor"),
        ({"a.b": torch.ones(1)}, "no known layout"),
    ],
)
def test_a_file_without_usable_tensors_is_refused(tmp_path, content, words):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(ConfigError, match=words):
        load_into(timm.create_model("resnet10t"), tmp_path / "w.pth")


@pytest.mark.parametrize("damage", ["truncated", "beyond", "overlapping", "huge header"])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_damaged_safetensors_file_is_refused(tmp_path, damage, suffix):
    path = tmp_path / f"w{suffix}"
    header = {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    data = bytes(16)
    if damage == "beyond":
        header["a"] |= {"shape": [400], "data_offsets": [0, 1600]}
    if damage == "overlapping":
        header["b"] = {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}
    text = json.dumps(header).encode()
    length = 2**60 if damage == "huge header" else len(text)
    whole = struct.pack("<Q", length) + text + data
    path.write_bytes(whole[:-5] if damage == "truncated" else whole)
    with pytest.raises(ConfigError, match="w"):
        read_state_dict(path)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1, 1, 1, 1, 1)])
def test_published_names_with_impossible_shapes_are_refused(tmp_path, shape):
    """Tensor by tensor: none may end in another error than a refusal."""
    model = JointModel(timm.create_model("vit_xsmall_patch16_clip_224", num_classes=0), frames=2)
    for published in (clip(), avion(), lavila(), videomae_pretrain(), videomae_finetune()):
        whole = {k.removeprefix("module."): v for k, v in fill(published, device="meta").items()}
        for key in whole:
            state = {**whole, key: torch.zeros(shape, device="meta")}
            try:
                translate(tmp_path, WeightsFile(state, {}))
            except ConfigError as refused:
                assert "not its shapes" in str(refused)
    state = fill(clip(Vit(width=256, layers=10, patch=16, image=224)))
    keys = [f"visual.{name}" for name in ("conv1.weight", "positional_embedding", "ln_pre.weight")]
    for key in keys:
        torch.save({**state, key: torch.zeros(shape)}, tmp_path / "w.pth")
        for load in (lambda p: load_into(model, p), convert_weights):
            with pytest.raises(ConfigError, match=r"w\.pth"):
                load(tmp_path / "w.pth")


def test_a_truncated_torch_file_is_refused(tmp_path):
    path = tmp_path / "w.pth"
    torch.save({"a": torch.ones(1000)}, path)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(ConfigError, match=r"w\.pth"):
        read_state_dict(path)


def test_a_file_is_read_by_its_content_not_its_name(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "w.pth")
    assert torch.equal(read_state_dict(tmp_path / "w.pth")["a"], torch.ones(2))


@pytest.mark.parametrize("content", [b"", b"not weights", b"PK\x03\x04 broken"])
def test_a_file_that_holds_no_weights_is_refused(tmp_path, content):
    """One line, whatever it holds."""
    for name in ("w.pth", "w.safetensors"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError):
            read_state_dict(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.to(torch.int8), "layer1.0.conv1.weight is int8; weights must be floating"),
        (lambda v: v * float("nan"), "layer1.0.conv1.weight holds values that are not finite"),
        (lambda v: v[:, :, :1], r"layer1.0.conv1.weight is \[64, 64, 1, 3\] there.*3, 3\] here"),
    ],
)
def test_unusable_numbers_are_refused_and_the_network_stays_as_it_was(tmp_path, change, words):
    model = timm.create_model("resnet10t", num_classes=4)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = {key: value + 1 for key, value in before.items()}
    state["layer1.0.conv1.weight"] = change(state["layer1.0.conv1.weight"])
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(ConfigError, match=words):
        load_into(model, tmp_path / "w.pth")
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_the_share_asked_for_decides_and_is_reported(tmp_path):
    """By the numbers in the tensors, the classifier aside."""
    model = timm.create_model("resnet10t", num_classes=4)
    state = model.state_dict()
    lost = {k: state.pop(k) for k in list(state) if k.startswith("layer4.")}
    torch.save(state, tmp_path / "w.pth")
    numbers = {k: v.numel() for k, v in model.state_dict().items() if v.is_floating_point()}
    whole = sum(n for k, n in numbers.items() if not k.startswith("fc."))
    share = 1 - sum(numbers.get(k, 0) for k in lost) / whole
    with pytest.raises(ConfigError, match=f"{share:.1%} of the weights match, 90%"):
        load_into(model, tmp_path / "w.pth")
    report = load_into(model, tmp_path / "w.pth", min_match=share - 0.01)
    assert report.share == pytest.approx(share)
    assert set(report.missing) == {k for k in lost if k in numbers}
    with pytest.raises(ConfigError, match=r"--min-match 1\.5"):
        load_into(model, tmp_path / "w.pth", min_match=1.5)


def run_import(source, *args):
    """The report, as written with --json."""
    facts = source.with_suffix(".json")
    assert import_.main([str(arg) for arg in (source, *args, "--json", facts)]) == 0
    return json.loads(facts.read_text())


def test_import_writes_clip_in_own_names_and_it_loads_like_the_published_file(tmp_path, capsys):
    vit = Vit(width=256, layers=10, patch=16, image=224, embed=20)  # vit_xsmall_patch16_clip_224
    source, out = tmp_path / "clip.pt", tmp_path / "clip.safetensors"
    torch.save(openai(fill(clip(vit, Text())), vit), source)
    run_import(source, "--out", out)
    shown = capsys.readouterr().out
    assert "CLIP names, vit_xsmall_patch16_clip_224" in shown and "100.0%" in shown
    with safe_open(out, "pt") as file:
        metadata = file.metadata()
    assert metadata["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert metadata["layout"] == "CLIP" and traits_of(out) == traits_of(source)
    assert "text.transformer.resblocks.1.mlp.c_fc.weight" in load_file(out)
    models = []
    for path in (source, out):
        backbone = timm.create_model("vit_xsmall_patch16_clip_224", num_classes=0, img_size=64)
        models.append(JointModel(backbone, frames=2))
        report = load_into(models[-1], path)
        assert report.layout == "CLIP" and report.share == 1
        assert "text_projection" in report.aside
        assert report.notes == ["trained with QuickGELU, this network's vision tower has GELU"]
    for mine, theirs in zip(*(m.state_dict().values() for m in models), strict=True):
        assert torch.equal(mine, theirs)


def test_import_finds_the_network_by_its_shapes(tmp_path):
    """A CNN with shifted convolutions, with its classifier; a VideoMAE with its decoder."""
    torchvision = pytest.importorskip("torchvision")
    theirs = torchvision.models.mobilenet_v2(num_classes=5)
    torch.save({"state_dict": tsm_mobilenet(theirs.state_dict())}, tmp_path / "tsm.pth")
    facts = run_import(tmp_path / "tsm.pth", "--out", tmp_path / "tsm.safetensors")
    assert facts["backbone"] == "mobilenetv2_100" and facts["classifier"] == "loaded"
    assert (facts["missing"], facts["unexpected"], facts["share"]) == ([], [], 1)
    model = FrameModel(timm.create_model("mobilenetv2_100", num_classes=5), 2)
    assert load_into(model, tmp_path / "tsm.safetensors", min_match=1.0).classifier == "loaded"
    assert torch.equal(model.backbone.classifier.weight, theirs.classifier[1].weight)

    vit = Vit(width=192, layers=12, patch=16, image=224)
    torch.save({"model": fill(videomae_pretrain(vit))}, tmp_path / "mae.pth")
    out = tmp_path / "mae.safetensors"
    facts = run_import(tmp_path / "mae.pth", "--out", out)
    assert facts["backbone"] == "vit_tiny_patch16_224"
    assert (facts["missing"], facts["unexpected"], facts["aside"]) == ([], [], [])
    assert {"mask_token", "decoder.blocks.1.attn.qkv.bias"} <= set(load_file(out))


def test_import_refuses_what_it_cannot_place(tmp_path):
    """A network of unknown shapes without --model; another network with it; a block that lacks a
    tensor; weights of which too much has no place."""
    out = tmp_path / "out.safetensors"

    def refused(state, words, *more):
        torch.save(state, tmp_path / "w.pth")
        with pytest.raises(ConfigError, match=words):
            run_import(tmp_path / "w.pth", "--out", out, *more)
        assert not out.exists()

    refused(fill(clip()), "no network known by its shapes.*--model")
    refused(fill(clip()), "timm has no such network", "--model", "vit_nothing")
    vit = Vit(width=256, layers=10, patch=16, image=224, embed=4)  # vit_xsmall_patch16_clip_224
    refused(fill(clip(vit)), "is for another network", "--model", "vit_medium_patch16_clip_224")
    refused(fill(lavila(vit)), r"unknown.*timeattn.*no place")
    vit = Vit(width=192, layers=12, patch=16, image=224)  # vit_tiny_patch16_224
    state = fill(videomae_pretrain(vit))
    del state["decoder.blocks.1.mlp.fc1.weight"]
    words = r"1 keys are missing \(decoder\.blocks\.1\.mlp\.fc1\.weight\)"
    refused(state, words, "--min-match", "1")
    with pytest.raises(ConfigError, match="is the file to import"):
        run_import(tmp_path / "w.pth", "--out", tmp_path / "w.pth")


def test_a_runs_averages_are_taken_where_it_kept_them(tmp_path):
    """What is not averaged comes from the model; a run without averages gives its weights."""
    model = {"a": torch.zeros(2), "steps": torch.tensor(3)}
    for ema, wanted in (({"updates": 1, "weights": {"a": torch.ones(2)}}, 1.0), (None, 0.0)):
        file = tmp_path / "last.pt"
        torch.save({"state": {"model": model, "ema": ema, "step": 1}, "vocabulary": {}}, file)
        tensors = read_state_dict(file)
        assert tensors["a"].tolist() == [wanted] * 2 and int(tensors["steps"]) == 3
