"""Exports against the run they come from: loaded again, run elsewhere, described truly."""

import json
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from matinee.cli import main
from matinee.errors import ConfigError, MatineeError
from matinee.inference.evaluate import evaluate
from matinee.inference.export import export
from matinee.inference.graphs import Graph, check_graph, write_graph
from matinee.inference.load import load_run
from matinee.models.base import VideoModel
from matinee.models.config import Inflate, Joint, ModelConfig
from matinee.tasks.build import build_task


def python_of(folder):
    """The code that the model card tells to run."""
    return re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1]


@pytest.mark.parametrize("kind", ["causal", "contrastive", "masked"])
def test_the_cards_code_loads_safetensors_into_the_same_network(
    kind, request, tmp_path, monkeypatch
):
    """Every tensor equal, and so the outputs."""
    run = request.getfixturevalue(f"{kind}_run")
    done = export(run, tmp_path / "out", to="safetensors")
    assert done.files == ("README.md", "config.json", "model.safetensors", "vocabulary.json")
    monkeypatch.chdir(tmp_path / "out")
    scope = {}
    exec(python_of(tmp_path / "out"), scope)
    own, loaded = load_run(run, device="cpu").task.model.state_dict(), scope["network"].state_dict()
    assert own.keys() == loaded.keys()
    assert all(torch.equal(own[name], loaded[name]) for name in own)
    assert scope["vocabulary"] == load_run(run, device="cpu").vocabulary


@pytest.mark.parametrize("model", [
    ModelConfig("test_resnet", Inflate(), dropout=0.0),
    ModelConfig("test_vit", Joint(), patch_size=8, dropout=0.0),
])  # fmt: skip
def test_other_networks_load_their_own_exports(model, causal_run, tmp_path):
    """Inflated kernels and position embeddings come back as they were, classifier included."""
    run = load_run(causal_run, device="cpu")

    def make(model):
        built = build_task(run.config.task, model, frames=4, size=32, vocabulary=run.vocabulary)
        return built.task

    task = make(model)
    with torch.no_grad():
        for parameter in task.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    export(
        replace(run, task=task, config=replace(run.config, model=model)), tmp_path / "out",
        to="safetensors",
    )  # fmt: skip
    again = make(replace(model, pretrained=str(tmp_path / "out" / "model.safetensors")))
    own, loaded = task.state_dict(), again.state_dict()
    assert all(torch.equal(own[name], loaded[name]) for name in own)


def test_the_card_says_what_was_trained_on_what_and_measured_how(causal_run, tmp_path, capsys):
    """Numbers are the evaluation's; nobody's paths are published."""
    shutil.copytree(causal_run, tmp_path / "run")
    report = evaluate(tmp_path / "run", views=(2, 1), workers=1, device="cpu")
    args = ["export", str(tmp_path / "run"), "--to", "safetensors", "--out", str(tmp_path / "out")]
    assert main(args) == 0
    assert "README.md, config.json, model.safetensors" in capsys.readouterr().out
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"`eval-val-2x1.json`: top1 {report['top1']:.3f}" in card and "6 samples" in card
    assert "18 samples (12 in train, 6 in val)" in card and "12 samples were trained on" in card
    assert "`left`, `right`" in card and "[batch, 3, 4, 32, 32]" in card
    assert "4 frames, 3 apart" in card and "square, 0.75 of the short side" in card
    norm = load_run(causal_run, device="cpu").normalisation
    assert all(f"{value:g}" in card for value in (*norm.mean, *norm.std))
    written = [p.read_bytes() for p in (tmp_path / "out").iterdir()]
    assert not any(str(tmp_path.parent.parent).encode() in data for data in written)
    stale = json.loads((tmp_path / "run" / "eval-val-2x1.json").read_text())
    (tmp_path / "run" / "eval-val-2x1.json").write_text(json.dumps(stale | {"step": 3}))
    export(tmp_path / "run", tmp_path / "later", to="safetensors")
    card = (tmp_path / "later" / "README.md").read_text()
    assert "2x1 views; of step 3, so of other weights than these." in card


def test_onnx_gives_the_runs_logits_by_the_cards_code(causal_run, tmp_path, monkeypatch, capsys):
    """Also for a batch size that was neither traced nor checked."""
    args = ["export", str(causal_run), "--to", "onnx", "--out", str(tmp_path / "out")]
    assert main(args) == 0
    said = capsys.readouterr().out
    difference = re.search(r"differs from the network by (\S+) of", said)[1]
    assert float(difference) <= 1e-4
    assert difference in (tmp_path / "out" / "README.md").read_text()
    monkeypatch.chdir(tmp_path / "out")
    scope = {}
    exec(python_of(tmp_path / "out"), scope)
    model = load_run(causal_run, device="cpu").task.model
    video = torch.randn(5, 3, 4, 32, 32)
    (got,) = scope["session"].run(None, {"video": video.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(got, model(video).numpy(), atol=1e-5)
        zero = model(torch.zeros(1, 3, 4, 32, 32)).numpy()
    np.testing.assert_allclose(scope["model_logits"], zero, atol=1e-5)


class Means(VideoModel):
    """A video tower of one layer, which is traced in no time."""

    frames, num_features = 4, 96

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 96)

    def embed(self, video_BCTHW):
        return self.layer(video_BCTHW.mean(dim=(2, 3, 4)))

    forward = embed


def test_both_towers_of_a_contrastive_run_are_exported(contrastive_run, tmp_path, monkeypatch):
    """The card's tokenizer gives the text graph what the run's own would."""
    run = load_run(contrastive_run, device="cpu")
    model = run.task.model
    model.video = Means()
    done = export(run, tmp_path / "out", to="onnx")
    assert [written.file.name for written in done.graphs] == ["video.onnx", "text.onnx"]
    monkeypatch.chdir(tmp_path / "out")
    scope = {}
    exec(python_of(tmp_path / "out"), scope)
    with torch.no_grad():
        text = model.embed_text(model.text.tokenize(["what is looked for"]).ids)
        video = model.embed_video(torch.zeros(1, 3, 4, 32, 32))
    np.testing.assert_allclose(scope["text_vectors"], text.numpy(), atol=1e-5)
    np.testing.assert_allclose(scope["video_vectors"], video.numpy(), atol=1e-5)


def test_a_masked_autoencoder_is_exported_as_its_encoder(masked_run, tmp_path):
    """With one block of its six; what `encode` gives for all tokens is what comes out."""
    run = load_run(masked_run, device="cpu")
    model = run.task.model
    del model.encoder.blocks[1:]
    done = export(run, tmp_path / "out", to="onnx")
    video = torch.randn(4, 3, 4, 32, 32)
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "encoder.onnx"))
    with torch.no_grad():
        wanted = model.encode(video).numpy()
    np.testing.assert_allclose(session.run(None, {"video": video.numpy()})[0], wanted, atol=1e-4)
    assert done.graphs[0].difference <= 1e-4


def graph_of(network, wanted):
    """Numbers [batch, 6] through a network."""
    example = lambda count: torch.randn(count, 6)  # noqa: E731
    return Graph("tiny", network.eval(), wanted, example, "x", "", "y", "")


def test_a_graph_that_computes_something_else_is_not_kept(causal_run, tmp_path, monkeypatch):
    """A thousandth too much; and the folder does not come to be."""
    layer = nn.Linear(6, 3)
    wrong = graph_of(layer, lambda x: layer(x) / 1.001)
    monkeypatch.setattr("matinee.inference.export.graphs_of", lambda run: [wrong])
    with pytest.raises(MatineeError, match=r"differs by 1\.0e-03 of the largest output, 1e-04 is"):
        export(causal_run, tmp_path / "out", to="onnx")
    assert list(tmp_path.iterdir()) == []


class Constant(nn.Module):
    """A network that takes two rows and no other number of them."""

    def forward(self, x):
        return x.view(2, -1)


def test_a_constant_batch_size_is_refused(tmp_path):
    """Whether the tracer notices, or the graph runs for that size alone."""
    fixed = graph_of(Constant(), Constant())
    with pytest.raises(ConfigError, match="tiny cannot become an ONNX graph"):
        write_graph(fixed, tmp_path, {})
    layer = nn.Linear(6, 3).eval()
    torch.onnx.export(
        layer, (torch.randn(2, 6),), tmp_path / "tiny.onnx", dynamo=True, verbose=False,
        input_names=["x"], output_names=["y"],
    )  # fmt: skip
    with pytest.raises(MatineeError, match=r"tiny\.onnx does not run in onnxruntime"):
        check_graph(graph_of(layer, layer), tmp_path / "tiny.onnx")


def test_a_folder_that_holds_something_is_left_alone(causal_run, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("kept")
    args = ["export", str(causal_run), "--to", "safetensors", "--out", str(tmp_path)]
    assert main(args) == 2
    assert "exists already: choose another --out" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_missing_package_is_named(causal_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"pip install 'matinee\[export\]'"):
        export(causal_run, tmp_path / "out", to="onnx")
    assert not (tmp_path / "out").exists()
