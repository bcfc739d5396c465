"""Decoding on the GPU: TorchCodec drives NVDEC, and frames never pass through the CPU's memory.

# Note [GPU decoding]
The chunk's bytes are read and checked here (the checksum of every packet a clip needs), TorchCodec
decodes the wanted frames to RGB on the device, and crop and antialiased scaling happen there. The
hardware decodes whole groups of pictures, so it skips no disposable frames; what it saves is the
CPU. Pixels differ from those decoded on the CPU by rounding and by how chroma is scaled.

Nobody gets another decoder than the one asked for without being told: where the GPU cannot decode
a pack, the loader warns with the reason and decodes on the CPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from matinee.data.decode_cost import Decoded
from matinee.data.decode_job import ClipJob, decoded
from matinee.data.job_threads import JobThreads
from matinee.errors import MatineeError, MediaError, first_line
from matinee.extras import require
from matinee.media.packets import VideoFormat
from matinee.media.plan import packets_to_feed
from matinee.media.work import Work
from matinee.pack.reading.clip import ClipPart, ClipReader, Located


class GpuDecoders:
    """Threads that each feed the GPU's decoder; batch memory is RGB on the device.

    `memory` is uint8 [slots, rows, T, 3, H, W].

    Raises:
        MissingExtra: TorchCodec is not installed.
    """

    lost = ()

    def __init__(
        self,
        threads: int,
        formats: Sequence[VideoFormat],
        shape: tuple[int, int, int],
        size: tuple[int, int],
        device: torch.device,
    ) -> None:
        """`shape` is (slots, rows, T), `size` (height, width) of the output."""
        self.memory = torch.zeros((*shape, 3, *size), dtype=torch.uint8, device=device)
        decode = _Job(formats, self.memory, size, device)
        self._threads = JobThreads(threads, decode, "matinee-nvdec")
        self.submit, self.wait = self._threads.submit, self._threads.wait
        self.close = self._threads.close


def why_not(device: torch.device, formats: Sequence[VideoFormat], chunk: Located) -> str | None:
    """Why this device cannot decode a pack, tried on one of its chunks; None if it can.

    Raises:
        MissingExtra: TorchCodec is not installed.
    """
    if device.type != "cuda":
        return f"the device is {device.type!r}, not a GPU"
    if not torch.cuda.is_available():
        return "there is no NVIDIA GPU"
    decode = _Decoder(formats, device)
    try:
        decode(ClipPart(chunk, (0,), (0,)))
    except MatineeError as error:
        return first_line(error)
    return None


class _Job:
    """Decodes a clip into its rows.

    What it took is the host's time: "scale" ends when the device has done what it was given.
    """

    def __init__(
        self,
        formats: Sequence[VideoFormat],
        memory: Tensor,
        size: tuple[int, int],
        device: torch.device,
    ) -> None:
        self._new: Callable[[], _Decoder] = lambda: _Decoder(formats, device)
        self._local = threading.local()
        self._memory, self._size, self._device = memory, size, device

    def __call__(self, job: ClipJob) -> Decoded:
        begin = time.monotonic()
        if not hasattr(self._local, "decode"):
            self._local.decode = self._new()
            self._local.stream = None
            if self._device.type == "cuda":
                self._local.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        work = self._local.decode.reader.work = Work(stretches=job.traced)
        rows = self._memory[job.slot]
        failure = None
        with torch.inference_mode(), torch.cuda.stream(self._local.stream):
            try:
                for part in job.parts:
                    frames = self._local.decode(part)  # [T, 3, H, W]
                    work.turn("scale")
                    for row, box in job.crops:
                        crop = frames[
                            :, :, box.y : box.y + box.height, box.x : box.x + box.width
                        ].float()
                        scaled = torch.nn.functional.interpolate(
                            crop, self._size, mode="bilinear", antialias=True
                        )
                        where = torch.tensor(part.rows, device=self._device)
                        rows[row].index_copy_(0, where, scaled.round_().clamp_(0, 255).byte())
            except MediaError as error:
                for row, _ in job.crops:
                    rows[row].zero_()
                failure = str(error)
            finally:
                if self._local.stream is not None:
                    self._local.stream.synchronize()  # this thread's own work alone
                work.turn("")
        return decoded(failure, work, begin)


class _Decoder:
    """Frames of a chunk as uint8 [T, 3, H, W] on the device."""

    def __init__(self, formats: Sequence[VideoFormat], device: torch.device) -> None:
        self._library: Any = require("torchcodec.decoders", "gpu-decode")
        self.reader = ClipReader(formats)
        self._device = device

    def __call__(self, part: ClipPart) -> Tensor:
        work = self.reader.work
        work.turn("")
        data = self.reader.chunk(part.chunk)
        table = self.reader.table(part.chunk)
        work.turn("decode")
        work.frames_used += len(set(part.frames))
        for run in packets_to_feed(table, part.frames):
            for packet in run:
                start = int(table.offset[packet])
                if crc32(data[start : start + int(table.size[packet])]) != table.crc[packet]:
                    number = int(table.frame[packet])
                    raise MediaError(f"damaged video data: frame {number} fails its checksum")
        try:
            decoder = self._library.VideoDecoder(
                bytes(data), device=str(self._device), num_ffmpeg_threads=1, seek_mode="exact"
            )
            if len(decoder) != table.num_frames:
                raise MediaError(
                    f"the GPU's decoder counts {len(decoder)} frames where {table.num_frames} are"
                )
            frames: Tensor = decoder.get_frames_at(list(part.frames)).data
        except (RuntimeError, ValueError, IndexError) as error:
            raise MediaError(f"the GPU's decoder refuses it: {first_line(error)}") from None
        return frames
