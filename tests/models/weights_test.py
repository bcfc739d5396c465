"""Published weights: loaded whole, or refused with the keys that do not fit."""

import pytest
import timm
import torch
from safetensors.torch import save_file

from matinee.errors import ConfigError
from matinee.models.weights import load_weights, read_state_dict


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
    note = load_weights(model, str(path))
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
    assert "classifier included" in load_weights(model, str(tmp_path / "w.pth"))
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(model(x), source(x))


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
        load_weights(timm.create_model("resnet10t", num_classes=4), str(tmp_path / "w.pth"))


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    """And does not run."""

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"x": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(ConfigError, match="no file of weights"):
        read_state_dict(tmp_path / "evil.pth")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"not weights", b"PK\x03\x04 broken"])
def test_a_file_that_holds_no_weights_is_refused(tmp_path, content):
    """One line, whatever it holds."""
    for name in ("w.pth", "w.safetensors"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError):
            read_state_dict(tmp_path / name)
