"""Predicted memory against what real steps take, and what must hold of it for any settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.profiler import ProfilerActivity, profile

from matinee.data.batch import Batch
from matinee.errors import ConfigError
from matinee.measure.plan.activations import loss_footprint
from matinee.measure.plan.fake import build_fake, follow_gpu
from matinee.measure.plan.live import LiveBytes
from matinee.measure.plan.memory import Memory, Reserve, predict_memory
from matinee.models.layout import to_channels_last
from matinee.models.recompute import recompute_blocks
from matinee.recipes import RECIPES, tiny
from matinee.tasks.build import build_task
from matinee.tasks.config import ContrastiveConfig
from matinee.tasks.vocabulary import Vocabulary
from matinee.training.config import TrainConfig
from matinee.training.optim.build import build_optimizer
from matinee.training.optim.ema import Ema
from matinee.training.parallel.ranks import Ranks
from matinee.training.parallel.wrap import wrap
from matinee.training.step import StepRunner

CLASSES = 7
CLIPS = 4
SIZE = 64
NETWORKS = ("tsm", "cls_epic100", "videomae_kinetics", "clip_ego4d")


def config_of(recipe: str, *, recompute: int = 0, parts: int = 1, **changes) -> TrainConfig:
    """A small network of the recipe's kind whose step takes `parts` times `CLIPS` clips."""
    config = tiny(RECIPES[recipe]("none", "none"))
    if config.model.backbone.startswith("vit_"):  # six blocks of 64 instead of twelve of 192
        config = replace(config, model=replace(config.model, backbone="test_vit"))
    task = config.task
    if hasattr(task, "mixup"):
        task = replace(task, mixup=0.0, cutmix=0.0)
    config = replace(
        config,
        task=task,
        clip=replace(config.clip, size=96),
        optim=replace(config.optim, batch_size=parts * CLIPS, accumulate=parts),
        speed=replace(config.speed, recompute=recompute),
    )
    return replace(config, **changes)


def predicted(config: TrainConfig, **changes) -> Memory:
    given = {"micro_batch": CLIPS, "device": "cpu", "precision": "fp32", "classes": CLASSES}
    return predict_memory(config, **{**given, **changes})


class RealStep:
    """The loop's own step on real tensors of `device`; `weights`, `state` are bytes held before."""

    def __init__(self, config: TrainConfig, precision: str = "fp32", device: str = "cpu") -> None:
        self.config, self.parts, self.device = config, config.optim.accumulate, device
        names = tuple(str(number) for number in range(CLASSES))
        self.task = build_task(
            config.task, config.model, frames=config.clip.frames, size=config.clip.size,
            vocabulary=Vocabulary(names),
        ).task.to(device).train()  # fmt: skip
        recompute_blocks(self.task.model, config.speed.recompute)
        to_channels_last(self.task)
        optimizer = build_optimizer(self.task.model, config.optim)
        for p in self.task.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.state = state_bytes(optimizer)
        held = (*self.task.parameters(), *self.task.buffers())
        self.weights = sum(tensor.nbytes for tensor in held)
        self.places = {tensor.untyped_storage().data_ptr() for tensor in held}
        ranks = Ranks(0, 1, 1, torch.device(device))
        self.runner = StepRunner(
            self.task, optimizer, wrap(self.task, config.parallel, ranks, parts=1, bf16=False),
            ranks, parts=self.parts, seed=0, precision=precision,
            clip_norm=config.optim.clip_norm,
        )  # fmt: skip

    def __call__(self) -> None:
        given = iter(self.batch, None)
        self.runner(given, clips=self.parts * CLIPS, number=0, lr=1e-3)

    def batch(self) -> Batch:
        clip = self.config.clip
        video = torch.randn(CLIPS, 3, clip.frames, clip.size, clip.size, device=self.device)
        self.places.add(video.untyped_storage().data_ptr())
        return Batch(
            video=video, target=torch.zeros(CLIPS, dtype=torch.int64, device=self.device),
            valid=torch.ones(CLIPS, dtype=torch.bool, device=self.device),
            index=torch.arange(CLIPS), samples=("a",) * CLIPS, num_valid=CLIPS,
            texts=("a person opens a door",) * CLIPS, seeds=torch.arange(CLIPS),
        )  # fmt: skip

    def saved(self) -> int:
        """Bytes of distinct storages that autograd saves in a step of one part."""
        held: dict[int, int] = {}

        def save(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.places:
                held[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            self()
        return sum(held.values())

    def peak(self) -> int:
        """Bytes at the fullest moment of a step, as PyTorch's allocator reports to its profiler.

        Not of the first step, in which libraries set things up.
        """
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            self()
        events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
        held = most = 0
        for event in sorted(events, key=lambda e: e.start_ns()):
            held += event.nbytes()
            most = max(most, held)
        return self.weights + self.state + most


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    values = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("recompute", [0, 1])
@pytest.mark.parametrize("recipe", NETWORKS)
def test_what_is_saved_and_the_peak_are_those_of_a_real_step(recipe, recompute):
    config = config_of(recipe, recompute=recompute)
    memory, step = predicted(config), RealStep(config)
    assert memory.saved == pytest.approx(step.saved(), rel=0.02)
    assert memory.total == pytest.approx(step.peak(), rel=0.04)


@pytest.mark.parametrize("recipe", ["videomae_kinetics", "clip_ego4d"])
def test_the_peak_of_several_parts_is_that_of_a_real_step(recipe):
    config = config_of(recipe, parts=3)
    memory, step = predicted(config), RealStep(config)
    step()
    assert memory.total == pytest.approx(step.peak(), rel=0.1)
    assert memory.gradients > 0.9 * memory.parameters  # they wait for the last part


@pytest.mark.parametrize("recipe", ["videomae_kinetics"])
def test_half_precision_saves_what_autocast_saves(recipe):
    config = config_of(recipe)
    memory = predicted(config, precision="bf16")
    assert memory.saved == pytest.approx(RealStep(config, "bf16").saved(), rel=0.02)
    assert memory.saved < predicted(config).saved


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", [0, 1])
@pytest.mark.parametrize("recipe", NETWORKS)
def test_the_peak_is_what_a_gpu_reports(recipe, recompute, precision):
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    config = config_of(recipe, recompute=recompute)
    config = replace(
        config, clip=replace(config.clip, size=128), speed=replace(config.speed, side_stream=False)
    )
    step = RealStep(config, precision, "cuda")
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    measured = torch.cuda.max_memory_allocated()
    memory = predicted(config, device="cuda", precision=precision)
    assert memory.total - memory.reserve == pytest.approx(measured, rel=0.1)


def test_fields_add_up_and_a_cpu_needs_no_reserve():
    for device in ("cpu", "cuda"):
        memory = predicted(config_of("tsm"), device=device, precision="bf16")
        parts = {k: v for k, v in memory.to_dict().items() if k not in ("total", "saved", "moment")}
        assert sum(parts.values()) == memory.total
        assert (memory.reserve > 0) == (device == "cuda")


def test_the_reserve_is_the_stated_one():
    reserve = Reserve(context=1000, workspaces=100, communicator=10, rounding=0.5)
    memory = predicted(config_of("tsm"), device="cuda", reserve=reserve)
    assert memory.reserve == 1100 + round((memory.total - memory.reserve) / 2)
    assert reserve.of(0, 2) == 1110


def test_no_weights_are_allocated_and_none_are_read():
    config = replace(RECIPES["clip_ego4d_large"]("none", "none"))
    config = replace(config, model=replace(config.model, pretrained="missing.safetensors"))
    task = build_fake(config, FakeTensorMode(), classes=CLASSES)
    assert all(isinstance(p, FakeTensor) for p in (*task.parameters(), *task.buffers()))
    assert sum(p.numel() for p in task.parameters()) > 400e6


@pytest.mark.parametrize("recipe", ["videomae_kinetics"])
@given(more=st.integers(1, 9))
@examples(max_examples=2, derandomize=True)
def test_memory_grows_with_clips_in_a_straight_line_and_with_frames(recipe, more):
    config = config_of(recipe)
    config = replace(config, optim=replace(config.optim, batch_size=1))
    a, b, c = (predicted(config, micro_batch=clips) for clips in (1, 2, 2 + more))
    assert a.saved < b.saved < c.saved and a.total < b.total < c.total
    assert c.saved == pytest.approx(b.saved + more * (b.saved - a.saved), rel=1e-3)
    longer = replace(config, clip=replace(config.clip, frames=2 * config.clip.frames))
    assert predicted(longer, micro_batch=1).saved > a.saved


@pytest.mark.parametrize("recipe", NETWORKS)
def test_recomputing_more_blocks_saves_less(recipe):
    all_kept, some, none_kept = (
        predicted(config_of(recipe, recompute=every)).saved for every in (0, 2, 1)
    )
    assert none_kept <= some < all_kept


@pytest.mark.parametrize("name", ["sgd", "adamw", "lion", "muon"])
def test_optimizer_state_is_that_of_the_real_optimizer(name):
    config = config_of("videomae_kinetics")
    config = replace(config, optim=replace(config.optim, name=name, ema=0.9))
    step = RealStep(config)
    average = sum(t.nbytes for t in Ema(step.task.model, 0.9).state_dict().values())
    memory = predicted(config)
    assert memory.optimizer == pytest.approx(step.state + average, abs=16 * 200)  # step numbers


def test_ranks_divide_what_their_strategy_says():
    config = config_of("videomae_kinetics")
    config = replace(config, optim=replace(config.optim, batch_size=4 * CLIPS))
    one = predicted(replace(config, optim=replace(config.optim, batch_size=CLIPS)))
    ddp, zero1, fsdp = (
        predicted(replace(config, parallel=replace(config.parallel, strategy=name)), world=4)
        for name in ("ddp", "zero1", "fsdp")
    )
    assert (ddp.parameters, ddp.optimizer) == (one.parameters, one.optimizer)
    assert (zero1.parameters, zero1.gradients) == (ddp.parameters, ddp.gradients)
    assert one.optimizer / 4 <= zero1.optimizer < 0.35 * one.optimizer
    assert fsdp.parameters == pytest.approx(one.parameters / 4, rel=0.05)
    assert fsdp.optimizer == pytest.approx(one.optimizer / 4, rel=0.05)
    assert fsdp.gradients <= 0.3 * ddp.gradients
    assert ddp.communication == zero1.communication == 0 < fsdp.communication


def test_parts_that_are_not_averaged_lie_beside_the_buckets():
    config = config_of("tsm")
    config = replace(config, optim=replace(config.optim, batch_size=4 * CLIPS))
    several = predicted(config, world=2)
    always = replace(config, parallel=replace(config.parallel, no_sync=False))
    assert several.communication > 0.9 * several.gradients
    assert predicted(always, world=2).communication == 0
    whole = replace(config, optim=replace(config.optim, batch_size=2 * CLIPS))
    assert predicted(whole, world=2).communication == 0


def test_contrastive_parts_keep_their_inputs_and_others_do_not():
    def inputs(recipe: str, parts: int) -> float:
        config = config_of(recipe, parts=parts)
        video = 3 * config.clip.frames * config.clip.size**2 * 4 * CLIPS
        return predicted(config).inputs / video

    assert inputs("clip_ego4d", 6) == pytest.approx(6)
    assert inputs("videomae_kinetics", 6) <= 2


def test_the_contrastive_loss_grows_with_all_ranks_clips_and_its_rows_with_its_own():
    task = ContrastiveConfig(embed_dim=8)
    small, large = loss_footprint(task, 64, 64), loss_footprint(task, 64, 256)
    assert large.saved > 10 * small.saved  # pairs are 16 times as many
    local = loss_footprint(replace(task, local_loss=True), 64, 256)
    assert local.saved == pytest.approx(large.saved / 4, rel=0.1)
    assert local.peak < large.peak
    config = config_of("clip_ego4d")
    on_ranks = replace(config, optim=replace(config.optim, batch_size=256 * CLIPS))
    whole = predicted(on_ranks, world=256)
    assert whole.saved > predicted(config).saved


def test_norms_are_wide_and_dropout_masks_are_bytes_as_on_a_gpu():
    module = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Dropout(0.5))
    x, live = torch.randn(4, 8, dtype=torch.bfloat16, requires_grad=True), LiveBytes()
    follow_gpu(module)
    with torch.autocast("cpu", torch.bfloat16), live, live.saving():
        out = module(x)
    assert out.dtype == torch.float32
    # The input as float32, mean and deviation of 4 rows, and a byte for each number.
    weights = 2 * 8 * 4
    assert live.saved - weights == 4 * 8 * 4 + 2 * 4 * 4 + 4 * 8


def test_live_bytes_count_a_storage_once_and_let_it_go():
    live = LiveBytes()
    with live:
        x = torch.empty(256)
        view = x[:128].view(2, 64)
        assert live.now.total() == 1024
        y = x + 1
        assert live.now.total() == 2048
        del x, y
        assert live.now.total() == 1024
        del view
        assert live.now.total() == 0
    assert live.peaks["forward"].total == 2048


def test_inflated_networks_margins_and_images_can_be_predicted():
    for recipe in ("i3d_311_kinetics", "mir_epic100", "vit_cifar"):
        config = config_of(recipe)
        assert predicted(config, micro_batch=2, device="cuda", precision="bf16").saved > 0


@pytest.mark.parametrize("name", ["micro_batch", "world", "classes"])
def test_nothing_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=f"{name} 0: at least 1"):
        predicted(config_of("tsm"), **{name: 0})


def test_a_number_format_that_is_not_decided_yet_or_refused_in_training_is_refused():
    config = config_of("tsm")
    with pytest.raises(ConfigError, match="on 'cpu' in 'auto'"):
        predicted(config, precision="auto")
    divided = replace(config, parallel=replace(config.parallel, strategy="fsdp"))
    with pytest.raises(ConfigError, match="fp16 with --parallel"):
        predicted(divided, precision="fp16", world=2)
