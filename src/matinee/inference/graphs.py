"""A run's network as ONNX graphs with any batch size, each checked by another runtime.

# Note [Checked graphs]
An exporter can change what a network computes without a word: a batch size that became a constant,
a layer rewritten with another rounding. So every graph is run by onnxruntime on random input, at
two batch sizes neither of which it was traced with, beside the network itself. The largest
difference, relative to the largest number that the network gave, is what counts as agreement.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from matinee.errors import ConfigError, MatineeError, first_line
from matinee.extras import require
from matinee.inference.load import LoadedRun
from matinee.models.masked import MaskedAutoencoder
from matinee.models.patches import embed_patches, patchify
from matinee.models.text import ClipText
from matinee.tasks.contrastive import ContrastiveTask
from matinee.tasks.masked import MaskedTask

TOLERANCE = 1e-4
TRACED, CHECKED = 2, (1, 3)  # batch sizes
_ONE_FILE = 1_800_000_000  # bytes of weights that a protobuf message has room for


@dataclass(frozen=True)
class Graph:
    """One graph to write: `network` is traced, `wanted` says what must come out, `example` gives a
    random input of a batch size. `shape` and `gives` describe input and output in words.
    """

    name: str
    network: nn.Module
    wanted: Callable[[Tensor], Tensor]
    example: Callable[[int], Tensor]
    input: str
    shape: str
    output: str
    gives: str


@dataclass(frozen=True)
class Written:
    """A graph on disk, and how far it is from the network: see Note [Checked graphs]."""

    graph: Graph
    file: Path
    opset: int
    difference: float


def graphs_of(run: LoadedRun) -> list[Graph]:
    """What a run's network is exported as; it must be on the CPU and in evaluation mode.

    Raises:
        ConfigError: a text tower whose weights are not the run's.
    """
    task, clip = run.task, run.config.clip
    pixels = f"float32 [batch, 3, {clip.frames}, {clip.size}, {clip.size}]"

    def video(count: int) -> Tensor:
        random = torch.Generator().manual_seed(count)
        shape = (count, 3, clip.frames, clip.size, clip.size)
        return torch.randn(shape, generator=random)

    if isinstance(task, ContrastiveTask):
        dual = task.model
        if not isinstance(dual.text, ClipText):
            raise ConfigError(
                f"{run.folder.path} has a sentence encoder as its text tower, which is exported by "
                "the project it comes from: --to safetensors exports what was trained here"
            )
        unit = f"unit vectors, float32 [batch, {dual.video_projection.shape[1]}]"
        return [
            Graph("video", _Call(dual, dual.embed_video), dual.embed_video, video, "video", pixels,
                  "vectors", unit),
            Graph("text", _Call(dual, dual.embed_text), dual.embed_text, _ids, "ids",
                  f"int64 [batch, {ClipText.context}], tokens of CLIP's vocabulary", "vectors",
                  unit),
        ]  # fmt: skip
    if isinstance(task, MaskedTask):
        network = task.model
        gives = f"the encoder's tokens, float32 [batch, {network.tokens}, {network.num_features}]"
        return [
            Graph("encoder", _Encoder(network), network.encode, video, "video", pixels, "tokens",
                  gives)
        ]  # fmt: skip
    gives = f"logits, float32 [batch, {len(run.vocabulary.classes)}]"
    model = task.model
    return [Graph("model", model, model, video, "video", pixels, "logits", gives)]


def write_graph(graph: Graph, folder: Path, metadata: dict[str, str]) -> Written:
    """Write `<folder>/<name>.onnx` (weights beside it if they are too large for one file), checked.

    Raises:
        ConfigError: the network cannot be exported.
        MatineeError: the graph does not compute what the network does.
        MissingExtra: onnx, onnxscript or onnxruntime is not installed.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require(package, "export")
    shapes = ({0: torch.export.Dim("batch", min=1, max=1 << 16)},)
    try:
        with _quiet():
            # Traced here and not within the ONNX exporter, which would let a batch size that
            # became a constant pass; `strict`, since otherwise `len` of a tensor makes it one.
            traced = torch.export.export(
                graph.network, (graph.example(TRACED),), dynamic_shapes=shapes, strict=True
            )
            program: Any = torch.onnx.export(
                traced, (), dynamo=True, dynamic_shapes=shapes, input_names=[graph.input],
                output_names=[graph.output], verbose=False,
            )  # fmt: skip
    except Exception as error:  # the exporter's errors have no common base
        raise ConfigError(
            f"{graph.name} cannot become an ONNX graph: {first_line(error)}"
        ) from error
    program.model.metadata_props.update(metadata)
    file = folder / f"{graph.name}.onnx"
    size = sum(p.numel() * p.element_size() for p in graph.network.parameters())
    program.save(str(file), external_data=size > _ONE_FILE)
    opset = int(program.model.opset_imports[""])
    return Written(graph, file, opset, check_graph(graph, file))


def check_graph(graph: Graph, file: Path) -> float:
    """The largest difference to the network, relative. See Note [Checked graphs].

    Raises:
        MatineeError: above the tolerance, not a number, or the graph does not run.
    """
    runtime: Any = require("onnxruntime", "export")
    worst = 0.0
    try:
        session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        for count in CHECKED:
            given = graph.example(count)
            with torch.no_grad():
                wanted = graph.wanted(given).double().numpy()
            (got,) = session.run([graph.output], {graph.input: given.numpy()})
            if got.shape != wanted.shape:
                raise MatineeError(
                    f"{graph.name}.onnx gives shape {list(got.shape)} for a batch of {count}; "
                    f"{list(wanted.shape)} was expected"
                )
            scale = max(float(np.abs(wanted).max()), 1e-12)
            apart = float(np.abs(got.astype(np.float64) - wanted).max()) / scale
            worst = max(worst, apart if np.isfinite(apart) else np.inf)
    except MatineeError:
        raise
    except Exception as error:  # so have onnxruntime's
        raise MatineeError(
            f"{graph.name}.onnx does not run in onnxruntime: {first_line(error)}"
        ) from error
    if worst > TOLERANCE:
        raise MatineeError(
            f"{graph.name}.onnx is not what the network computes: it differs by {worst:.1e} of "
            f"the largest output, {TOLERANCE:.0e} is allowed"
        )
    return worst


class _Call(nn.Module):
    """A method of a network as a network's forward."""

    def __init__(self, network: nn.Module, method: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self._method = network, method

    def forward(self, x: Tensor) -> Tensor:
        return self._method(x)


class _Encoder(nn.Module):
    """A masked autoencoder's encoder on all tokens, without the sorting by masks."""

    def __init__(self, network: MaskedAutoencoder) -> None:
        super().__init__()
        self.network = network

    def forward(self, video_BCTHW: Tensor) -> Tensor:
        network = self.network
        patches = patchify(video_BCTHW, network.tubelet, network.patch)
        x = embed_patches(network.encoder, patches) + network.table
        out: Tensor = network.encoder.norm(network.encoder.blocks(x))
        return out


def _ids(count: int) -> Tensor:
    """Random words between start and end of text, of random length."""
    random = torch.Generator().manual_seed(count)
    start, end = ClipText.vocabulary - 2, ClipText.vocabulary - 1
    ids = torch.zeros(count, ClipText.context, dtype=torch.int64)
    for row in ids:
        words = int(torch.randint(1, ClipText.context - 1, (1,), generator=random))
        row[0], row[words + 1] = start, end
        row[1 : words + 1] = torch.randint(1, start, (words,), generator=random)
    return ids


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks about itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
