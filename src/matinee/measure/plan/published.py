"""Training times that papers published, predicted: what the planner's models are worth.

Every number that goes in is here or in `assumptions.py`, with its source; none is fitted to these
times, but see Note [Assumptions]. The same models plan a user's run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from matinee.extras import require
from matinee.measure.plan.assumptions import Assumptions
from matinee.measure.plan.batch import BatchPlan
from matinee.measure.plan.cards import Fleet, read_cards
from matinee.measure.plan.collective import Link, Network
from matinee.measure.plan.data_side import typical_footage
from matinee.measure.plan.jitter import Jitter, Tailed
from matinee.measure.plan.memory import predict_memory
from matinee.measure.plan.scaling import Job, Point, predict_step
from matinee.measure.plan.step_time import compute_seconds
from matinee.measure.plan.whole import Plan, Wish, plan_run
from matinee.measure.plan.work import Work, count_work
from matinee.models.config import Frames, Joint
from matinee.recipes import RECIPES
from matinee.tasks.config import ClipTextConfig, ContrastiveConfig
from matinee.training.config import TrainConfig
from matinee.training.precision import Precision


@dataclass(frozen=True)
class Fact:
    """A number that goes into a prediction, and where it is from."""

    name: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True)
class Compared:
    """What was published, and what comes out."""

    what: str
    published: float
    predicted: float
    unit: str
    source: str

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1


# --- Training Kinetics in 15 minutes, arXiv 1910.00932 -------------------------------------------

SUMMIT_NODE = 6
SINGLE_NODE_S = 49 * 3600 + 55 * 60
KINETICS_FACTS = (
    Fact("one node", SINGLE_NODE_S, "s", "arXiv 1910.00932, abstract: 49 h 55 m on 6 V100s"),
    Fact("clips of a GPU a step", 8, "", "arXiv 1910.00932: 12,288 clips on 1,536 GPUs"),
    Fact("gradients", 97e6, "bytes", "arXiv 1910.00932: ResNet-50 of 400 classes, float32"),
    Fact("between nodes", 25e9, "bytes/s", "dual-rail EDR InfiniBand, 2 × 12.5 GB/s"),
    Fact("between GPUs", 50e9, "bytes/s", "Summit: two NVLink bricks of 25 GB/s a pair"),
    Fact("clips of an epoch", 239_781, "", "Kinetics-400, training, as PaddlePaddle's TSM has it"),
    Fact("epochs", 100, "", "TSM, arXiv 1811.08383, §5.1, dense sampling; 74 % top-1"),
    Fact("backward pass", 2 / 3, "of a step", "two products backwards for each one forwards"),
    Fact("bucket", 25 * 2**20, "bytes", "PyTorch's default for gradients that travel together"),
)  # fmt: skip
KINETICS_PUBLISHED = ((1536, 14 * 60 + 13.0, "arXiv 1910.00932, abstract"),)
"""Ranks, seconds, source."""


def kinetics_job(take: Assumptions, jitter: Jitter) -> tuple[Job, Network]:
    """A rank of the published run, from its single node, and Summit's network.

    A node's step has its slowest rank of six and its own all-reduce in it: both are taken out.
    """
    facts = {fact.name: fact.value for fact in KINETICS_FACTS}
    clips = int(facts["clips of a GPU a step"])
    steps = facts["clips of an epoch"] * facts["epochs"] / (clips * SUMMIT_NODE)
    node_step = facts["one node"] / steps
    network = Network(
        SUMMIT_NODE,
        Link(take.nvlink_us * 1e-6, facts["between GPUs"] * take.link_efficiency),
        Link(take.network_us * 1e-6, facts["between nodes"] * take.link_efficiency),
    )
    job = Job(
        clips, node_step / clips, 0.0, facts["backward pass"], facts["gradients"], facts["bucket"]
    )
    exposed = predict_step(job, network, jitter, SUMMIT_NODE).exposed
    alone = (node_step - exposed) / jitter.slowest(SUMMIT_NODE)
    return replace(job, clip_seconds=alone / clips), network


def kinetics_seconds(point: Point) -> float:
    """Of the whole run, on so many ranks: the same clips pass."""
    facts = {fact.name: fact.value for fact in KINETICS_FACTS}
    return facts["clips of an epoch"] * facts["epochs"] / point.rate


def kinetics15(take: Assumptions | None = None, jitter: Jitter | None = None) -> list[Compared]:
    """The published times on many GPUs, from the single node's."""
    take = take or Assumptions()
    spread = jitter or Tailed(take.jitter, take.slowest, take.slowest_of)
    job, network = kinetics_job(take, spread)
    return [
        Compared(
            f"TSM on {ranks:,} V100s", seconds / 60,
            kinetics_seconds(predict_step(job, network, spread, ranks)) / 60, "min", source,
        )
        for ranks, seconds, source in KINETICS_PUBLISHED
    ]  # fmt: skip


# --- AVION, arXiv 2309.16669 ---------------------------------------------------------------------

AVION_FACTS = (
    Fact("clips of an epoch", 4_000_000, "", "AVION's MODEL_ZOO: corpus size 4.0M; 5 epochs"),
    Fact("batch of a GPU", 256, "", "AVION's MODEL_ZOO: --batch-size 256, every block recomputed"),
    Fact("attention", 0.4, "of products", "first FlashAttention (it was trained with): 0.25 to 0.4 "
         "of the peak that products reach 0.8 to 0.87 of (arXiv 2307.08691)"),
    Fact("copy to the device", 9.5e9, "bytes/s", "pageable memory to an RTX A5000, as MATLAB's GPU "
         "benchmark measured; the code's batches are float32, not pinned, copied between steps"),
)  # fmt: skip
AVION_PUBLISHED = (
    (18.0, "arXiv 2309.16669: 18 hours on 8 A5000s"),
    (130 / 8, "its README and MODEL_ZOO: about 130 GPU-hours for the same run"),
)


def avion_plan(take: Assumptions | None = None) -> Plan:
    """The published run: `clip_ego4d` with one class token a clip, in fp16, 256 clips a GPU."""
    facts = {fact.name: fact.value for fact in AVION_FACTS}
    take = replace(take or Assumptions(), attention_efficiency=facts["attention"])
    config = RECIPES["clip_ego4d"]("", "")
    model = replace(config.model, temporal=Joint(class_token="clip"))
    config = replace(config, model=model, speed=replace(config.speed, precision="fp16"))
    footage = typical_footage(
        int(facts["clips of an epoch"]), 3670, fps=30, profile="small", height=288, stride=4
    )
    fleet = Fleet(read_cards()["A5000"], 8, 8)
    micro = int(facts["batch of a GPU"])
    memory = predict_memory(config, micro_batch=micro, world=8, precision="fp16", classes=1)
    batch = BatchPlan(micro, 1, 1, "ddp", memory, 1.0, "As published.")
    return plan_run(Wish(config, fleet, footage, take, classes=1, batch=batch))


def avion_hours(plan: Plan) -> float:
    """With the copies that the published code does not do ahead."""
    facts = {fact.name: fact.value for fact in AVION_FACTS}
    clip = plan.wish.config.clip
    copied = facts["batch of a GPU"] * clip.frames * clip.size**2 * 3 * 4
    return plan.hours + plan.last.steps * copied / facts["copy to the device"] / 3600


def avion(take: Assumptions | None = None) -> list[Compared]:
    """The published hours, and what comes out for the published code."""
    hours = avion_hours(avion_plan(take))
    return [
        Compared("ViT-B on 8 A5000s", published, hours, "h", source)
        for published, source in AVION_PUBLISHED
    ]


# --- timm's training rates on an RTX 3090 --------------------------------------------------------

TIMM_SOURCE = (
    "huggingface/pytorch-image-models, results/benchmark-train-amp-{nchw,nhwc}-pt112-cu113-"
    "rtx3090.csv, the faster layout"
)
TIMM_RTX3090 = {
    "vit_small_patch16_224": (1057.92, 384, 224),
    "vit_base_patch32_224": (1708.63, 512, 224),
    "vit_base_patch16_224": (392.99, 192, 224),
    "vit_large_patch16_224": (117.20, 64, 224),
    "vit_base_patch16_384": (97.10, 32, 384),
    "beit_base_patch16_224": (358.77, 192, 224),
    "resnet18": (3481.78, 512, 224),
    "resnet50": (1218.01, 512, 224),
    "resnet101": (747.89, 256, 224),
    "resnext50_32x4d": (1001.03, 384, 224),
    "wide_resnet50_2": (668.78, 384, 224),
    "efficientnet_b0": (1751.72, 512, 224),
    "convnext_tiny": (819.24, 256, 224),
    "convnext_base": (338.68, 128, 224),
}
"""Pictures a second, batch, and side of a picture; fp16 by autocast, explicit attention."""


def timm_rates(take: Assumptions | None = None) -> list[Compared]:
    """Training rates that timm published of an RTX 3090, beside the roofline's."""
    take = take or Assumptions()
    card = read_cards()["3090"]
    base = RECIPES["tsn_kinetics"]("", "")
    rows = []
    for name, (rate, batch, size) in TIMM_RTX3090.items():
        model = replace(base.model, backbone=name, temporal=Frames(), partial_bn=False)
        clip = replace(base.clip, frames=1, size=size)
        config = replace(base, model=model, clip=clip)
        work = _with_explicit_attention(config, batch, "fp16", 1000)
        seconds = compute_seconds(work, config, card, "fp16", take, 1)
        mine = batch / seconds.passes
        rows.append(Compared(name, rate, mine, "pictures/s", TIMM_SOURCE))
    return rows


def _with_explicit_attention(
    config: TrainConfig, micro_batch: int, precision: Precision, classes: int
) -> Work:
    """Work of a run with timm's attention as it was before PyTorch had a fused one.

    Networks of joint attention are fused all the same.
    """
    layers: Any = require("timm.layers", "train")
    before = layers.use_fused_attn()
    layers.set_fused_attn(False)
    try:
        return count_work.__wrapped__(
            config, micro_batch=micro_batch, precision=precision, classes=classes
        )
    finally:
        layers.set_fused_attn(bool(before))


# --- How busy published training runs keep their devices ------------------------------------------

OPEN_CLIP = "huggingface.co/mehdidc/test, trained_models_info.csv: A100-40GB; recomputing unknown"
VIDEOMAE = "VideoMAE, 4 A5000s"
"""AVION's, which `measure/reproduce/avion` predicts as well."""
BUSY_RUNS = {
    "TSM, 6 V100s": ("V100-16GB", 6, 22.24, "arXiv 1910.00932: 49 h 55 m on one node, float32"),
    VIDEOMAE: ("A5000", 4, 91.5, "AVION's MODEL_ZOO: 583 GPU-hours for 800 epochs"),
    "CLIP B/16, 344 A100s": ("A100-40GB", 344, 396.4, OPEN_CLIP),
    "CLIP L/14, 1,024 A100s": ("A100-40GB", 1024, 77.3, OPEN_CLIP),
    "CLIP B/32, 128 A100s": ("A100-40GB", 128, 850.3, OPEN_CLIP),
}
"""Card, how many, clips (pictures) a second of each, source."""


def busy_without(run: str, take: Assumptions | None = None) -> float:
    """The median of how busy published runs kept their devices, without one that is predicted."""
    return median(c.published / c.predicted for c in busy_runs(take, leave_out=run))


def busy_runs(take: Assumptions | None = None, *, leave_out: str = "") -> list[Compared]:
    """Rates that whole training runs were published with, beside those of operations alone (with
    the slowest rank): the quotient is how busy they kept their devices.

    Where it is not known whether activations were recomputed, none are here: if all were, CLIP's
    quotients would be higher by a third at most.
    """
    take = replace(take or Assumptions(), busy=1.0)
    spread = Tailed(take.jitter, take.slowest, take.slowest_of)
    cards, rows = read_cards(), []
    for name, (card, count, rate, source) in BUSY_RUNS.items():
        if name == leave_out:
            continue
        config, precision, micro, attention = _busy_run(name)
        there = replace(take, attention_efficiency=attention or take.attention_efficiency)
        work = _with_explicit_attention(config, micro, precision, 400)
        seconds = compute_seconds(work, config, cards[card], precision, there, 1)
        mine = micro / seconds.total / spread.slowest(count)
        rows.append(Compared(name, rate, mine, "clips/s", source))
    return rows


def _busy_run(name: str) -> tuple[TrainConfig, Precision, int, float | None]:
    """Configuration, precision, micro-batch, and attention's efficiency where it is not today's."""
    if name.startswith("TSM"):
        return RECIPES["tsm_kinetics"]("", ""), "fp32", 8, None
    if name.startswith("VideoMAE"):
        return RECIPES["videomae_kinetics"]("", ""), "fp16", 64, 0.4
    vit, width, micro = {
        "B/16": ("vit_base_patch16", 512, 256), "L/14": ("vit_large_patch14", 768, 84),
        "B/32": ("vit_base_patch32", 512, 256),
    }[name.split()[1].strip(",")]  # fmt: skip
    base = RECIPES["clip_ego4d"]("", "")
    assert isinstance(base.task, ContrastiveConfig)
    text = ClipTextConfig(width=width, heads=width // 64, layers=12)
    model = replace(base.model, backbone=f"{vit}_clip_224", temporal=Frames())
    return replace(
        base, model=model, task=replace(base.task, text=text), clip=replace(base.clip, frames=1),
        speed=replace(base.speed, recompute=0),
    ), "bf16", micro, None  # fmt: skip


__all__ = [
    "AVION_FACTS", "KINETICS_FACTS", "Compared", "Fact", "avion", "avion_hours", "avion_plan",
    "busy_runs", "busy_without",
    "kinetics15", "kinetics_job", "kinetics_seconds", "timm_rates",
]  # fmt: skip
