"""Who reads clips: a pack's reader, bare decoding, and other libraries that are installed.

All give the same frames of the same crop at the same size; others open the file of a clip's chunk
for each clip, as they must when a data set has more files than can stay open.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from numpy.typing import NDArray

from matinee.errors import first_line
from matinee.measure.bench.loader_clips import Clip
from matinee.media.decode import Box, Pixels, frame_bytes
from matinee.media.plan import packets_to_feed
from matinee.pack.reading.clip import ClipReader, Located
from matinee.pack.reading.reader import Pack

Read = Callable[[Clip], NDArray[np.uint8] | None]
"""Read a clip; RGB [T, H, W, 3] if that is what it makes."""
Files = Mapping[Located, Path]
CLOSE = 4.0  # mean difference, of 255, up to which pictures are the same but for scaling


def pack_reader(pack: Pack, size: int, pixels: Pixels) -> Read:
    """matinee's, in this thread."""
    reader = ClipReader(pack.formats)

    def read(clip: Clip) -> NDArray[np.uint8] | None:
        frames = sum(len(part.rows) for part in clip.parts)
        out = np.empty((frames, frame_bytes((size, size), pixels)), np.uint8)
        reader.read(clip.parts, out, box=clip.box, size=(size, size), pixels=pixels)
        return out.reshape(frames, size, size, 3) if pixels == "rgb" else None

    return read


class DecodeOnly:
    """The floor: the planned packets through FFmpeg's decoder, frames thrown away. `spent`: seconds
    in the decoder alone; reading and planning are not counted.
    """

    def __init__(self, pack: Pack) -> None:
        self.spent = 0.0
        self._pack, self._reader = pack, ClipReader(pack.formats)
        self._decoders: dict[int, Any] = {}

    def __call__(self, clip: Clip) -> None:
        for part in clip.parts:
            table, data = self._reader.table(part.chunk), self._reader.chunk(part.chunk)
            runs = []
            for run in packets_to_feed(table, part.frames):
                packets = []
                for number in run:
                    start, size = int(table.offset[number]), int(table.size[number])
                    packet = av.Packet(size)  # with the padding that decoders read into
                    packet.update(bytes(data[start : start + size]))
                    packets.append(packet)
                runs.append(packets)
            decoder = self._decoder(part.chunk.codec)
            begin = time.perf_counter()
            for packets in runs:
                for packet in packets:
                    decoder.decode(packet)
                decoder.decode(None)
                decoder.flush_buffers()
            self.spent += time.perf_counter() - begin

    def _decoder(self, codec: int) -> Any:
        if codec not in self._decoders:
            fmt = self._pack.formats[codec]
            decoder: Any = av.CodecContext.create(fmt.codec, "r")
            decoder.extradata = fmt.extradata or None
            decoder.width, decoder.height, decoder.pix_fmt = fmt.width, fmt.height, fmt.pix_fmt
            decoder.thread_count = 1
            self._decoders[codec] = decoder
        return self._decoders[codec]


def torchcodec(files: Files, size: int, mode: str) -> Read:
    """Crop fused into decoding."""
    decoders = importlib.import_module("torchcodec.decoders")
    transforms = importlib.import_module("torchcodec.transforms")

    def read(clip: Clip) -> NDArray[np.uint8]:
        assert clip.frames is not None
        # It crops at a random place of its own: the same work.
        crop = transforms.RandomCrop((clip.box.height, clip.box.width))
        decoder = decoders.VideoDecoder(
            str(files[clip.chunk]), seek_mode=mode, num_ffmpeg_threads=1,
            dimension_order="NHWC", transforms=[crop, transforms.Resize((size, size))],
        )  # fmt: skip
        frames: NDArray[np.uint8] = decoder.get_frames_at(list(clip.frames)).data.numpy()
        return frames

    return read


def decord(files: Files, size: int) -> Read:
    """Whole frames, then crop and scale."""
    library = importlib.import_module("decord")

    def read(clip: Clip) -> NDArray[np.uint8]:
        assert clip.frames is not None
        reader = library.VideoReader(str(files[clip.chunk]), num_threads=1)
        whole = torch.from_numpy(reader.get_batch(list(clip.frames)).asnumpy())
        box = clip.box
        part = whole[:, box.y : box.y + box.height, box.x : box.x + box.width]
        scaled = torch.nn.functional.interpolate(
            part.permute(0, 3, 1, 2), (size, size), mode="bilinear", antialias=True
        )
        return scaled.permute(0, 2, 3, 1).numpy()

    return read


def spdl(files: Files, size: int) -> Read:
    """Crop and scale by FFmpeg's filters."""
    library = importlib.import_module("spdl.io")

    def read(clip: Clip) -> NDArray[np.uint8]:
        assert clip.frames is not None
        first, last, box = clip.frames[0], clip.frames[-1], clip.box
        begin, end = first / clip.fps, (last + 1) / clip.fps
        early = 0.25 / clip.fps
        chosen = "+".join(f"eq(n,{frame - first})" for frame in clip.frames)
        filters = (
            f"trim=start={begin - early}:end={end - early},select='{chosen}',"
            f"crop={box.width}:{box.height}:{box.x}:{box.y},"
            f"scale={size}:{size}:flags=bilinear,format=pix_fmts=rgb24"
        )
        packets = library.demux_video(str(files[clip.chunk]), timestamp=(begin, end))
        decoded = library.decode_packets(packets, filter_desc=filters)
        frames: NDArray[np.uint8] = library.to_numpy(library.convert_frames(decoded))
        return frames

    return read


def peers(files: Files, size: int) -> dict[str, Callable[[], Read]]:
    """What makes readers of other libraries, installed or not."""
    return {
        "torchcodec": lambda: torchcodec(files, size, "exact"),
        "torchcodec, approximate": lambda: torchcodec(files, size, "approximate"),
        "decord": lambda: decord(files, size),
        "spdl-io": lambda: spdl(files, size),
    }


def usable_peers(
    makers: Mapping[str, Callable[[], Read]], pack: Pack, clip: Clip, size: int
) -> tuple[dict[str, float], dict[str, str]]:
    """Which peers are here and give our frames: their mean difference (of 255) over the whole
    picture; and why the others are left out.
    """
    fmt = pack.formats[clip.chunk.codec]
    # Without a crop: one at a random place would differ.
    whole = replace(clip, box=Box(0, 0, fmt.width // 2 * 2, fmt.height // 2 * 2))
    expected = pack_reader(pack, size, "rgb")(whole)
    assert expected is not None
    close: dict[str, float] = {}
    refused: dict[str, str] = {}
    for name, make in makers.items():
        try:
            frames = make()(whole)
        except ModuleNotFoundError:
            refused[name] = "not installed: pip install 'matinee[bench]'"
            continue
        except Exception as error:  # whatever another library raises
            refused[name] = f"cannot read this file: {first_line(error)[:120]}"
            continue
        if frames is None or frames.shape != expected.shape:
            refused[name] = f"gives {None if frames is None else frames.shape} for a clip"
            continue
        away = float(np.abs(frames.astype(np.float32) - expected).mean())
        if away > CLOSE:
            refused[name] = f"gives other frames: {away:.0f} of 255 away on average"
        else:
            close[name] = away
    return close, refused
