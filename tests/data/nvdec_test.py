"""Decoding by TorchCodec: its frames are those decoded here; without a GPU a warning says so."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from matinee.data.clips import ClipSpec
from matinee.data.decode_job import ClipJob
from matinee.data.loader import ClipLoader
from matinee.data.nvdec import GpuDecoders
from matinee.media.decode import Box
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.profiles import make_profile
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.writer import write_pack

SIZE = (64, 64)


def torchcodec_loads() -> str | None:
    try:
        import torchcodec.decoders  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        return str(error).splitlines()[0]
    return None


needs_torchcodec = pytest.mark.skipif(
    torchcodec_loads() is not None, reason="TorchCodec or the FFmpeg it needs is not installed"
)


@pytest.fixture(scope="module")
def pack(tmp_path_factory, film) -> Path:
    """Two films of two chunks each."""
    folder = tmp_path_factory.mktemp("nvdec")
    videos = tuple(
        VideoFile(f"{n}.mp4", film(folder / f"{n}.mp4", frames=64, size=(128, 96), seed=n))
        for n in range(2)
    )
    samples = tuple(Sample(v.id, v.id, label="ab"[n], split="train") for n, v in enumerate(videos))
    profile = make_profile(chunk_seconds=1.0, crf=10)
    write_pack(folder / "my.pack", Annotations(videos, samples), profile, workers=1)
    return folder / "my.pack"


def decoded(pack: Pack, frames: list[int], boxes: list[Box]) -> tuple[torch.Tensor, str | None]:
    """[crops, T, 3, H, W], decoded by TorchCodec on the CPU: the same code as on a GPU."""
    parts = pack.locate(pack.info(0).video, frames)
    device = torch.device("cpu")
    decoders = GpuDecoders(1, pack.formats, (1, len(boxes), len(frames)), SIZE, device)
    try:
        decoders.submit([(7, ClipJob(0, parts, tuple(enumerate(boxes)), SIZE))])
        ((number, done),) = decoders.wait()
        assert number == 7 and done.cost.clips == (done.failure is None)
        return decoders.memory[0].clone(), done.failure
    finally:
        decoders.close()


@needs_torchcodec
def test_frames_are_those_that_the_pack_reads(pack):
    """In order, across chunks, each crop its own; within rounding and chroma's scaling."""
    data = Pack(pack)
    frames, boxes = [2, 30, 31, 33, 34, 60, 5], [Box(0, 0, 128, 96), Box(20, 10, 70, 80)]
    found, failure = decoded(data, frames, boxes)
    assert failure is None
    for row, box in enumerate(boxes):
        ours = data.read(0, frames, size=SIZE, box=box)
        theirs = found[row].permute(0, 2, 3, 1).numpy()
        away = np.abs(ours.astype(int) - theirs.astype(int)).mean(axis=(1, 2, 3))
        assert away.max() < 6, away  # blocks of random colours: chroma is scaled otherwise
        # And nearer than any neighbour of the frame.
        other = data.read(0, [frame + 1 for frame in frames], size=SIZE, box=box)
        wrong = np.abs(other.astype(int) - theirs.astype(int)).mean(axis=(1, 2, 3))
        assert (wrong > 2 * away).all()


@needs_torchcodec
def test_damaged_bytes_are_a_failure_and_not_a_picture(pack, tmp_path):
    """By the checksum of a packet that the clip needs."""
    import shutil

    shutil.copytree(pack, tmp_path / "my.pack")
    data = Pack(tmp_path / "my.pack")
    (part,) = data.locate(data.info(0).video, [0])
    shard = Path(part.chunk.file)
    content = bytearray(shard.read_bytes())
    content[part.chunk.offset + part.chunk.size // 2] ^= 0xFF
    shard.write_bytes(content)
    found, failure = decoded(Pack(tmp_path / "my.pack"), list(range(25)), [Box(0, 0, 128, 96)])
    assert failure is not None and "checksum" in failure
    assert not found.any()


@needs_torchcodec
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_warning_says_who_decodes_instead(pack, caplog):
    """And the batches are those of that decoder."""
    spec = ClipSpec(frames=4, sampling="dense", stride=4, size=64)
    settings = {"split": "train", "clip": spec, "batch_size": 2, "seed": 3, "workers": 1}
    with caplog.at_level(logging.WARNING, "matinee.data"):
        loader = ClipLoader(Pack(pack), mode="nvdec", **settings)
    assert "GPU" in caplog.text and "instead: 1 decoding process" in caplog.text
    assert "NVDEC cannot be used" in loader.explain()
    with loader, ClipLoader(Pack(pack), **settings) as plain:
        for a, b in zip(loader, plain, strict=True):
            assert torch.equal(a.video, b.video)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@needs_torchcodec
def test_a_gpu_gives_the_batches_of_the_cpu_within_rounding(pack):
    spec = ClipSpec(frames=4, sampling="dense", stride=4, size=64, flip="horizontal")
    settings = {
        "split": "train", "clip": spec, "batch_size": 2, "seed": 3, "workers": 1, "device": "cuda"
    }  # fmt: skip
    with (
        ClipLoader(Pack(pack), mode="nvdec", **settings) as gpu,
        ClipLoader(Pack(pack), **settings) as cpu,
    ):
        assert gpu.mode == "nvdec", gpu.explain()
        for a, b in zip(gpu, cpu, strict=True):
            assert a.samples == b.samples
            assert (a.video - b.video).abs().mean() < 0.1
