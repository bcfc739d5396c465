"""Contrastive training of clips and captions, with batches larger than memory."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from matinee.data.batch import Batch
from matinee.data.transfer import send
from matinee.models.dual import DualEncoder
from matinee.models.text import Tokens
from matinee.tasks.base import Outcome, Step, StepOutcome, Task
from matinee.tasks.config import ContrastiveConfig
from matinee.tasks.feature_cache import cached_backward
from matinee.tasks.gather import gather_with_gradient, own_rows
from matinee.tasks.losses import info_nce, max_margin


class ContrastiveTask(Task):
    """InfoNCE or max-margin over all pairs of a step, on all ranks.

    Several batches a step do not add up to the loss of one large batch; their features do: see
    Note [Feature cache].

    Args:
        verbs: with graded margins, how many of a target's columns are verbs; the others are nouns.
    """

    kind: ClassVar[str] = "contrastive"
    headline: ClassVar[str] = "t2v_r1"
    model: DualEncoder

    def __init__(self, model: DualEncoder, config: ContrastiveConfig, verbs: int = 0) -> None:
        super().__init__()
        self.model, self.config, self.verbs = model, config, verbs

    def forward(self, batch: Batch) -> Outcome:
        """The loss of a batch alone, summed over valid clips; see `gradients` for steps."""
        tokens = self.tokenize(batch)
        video, text = self.compute((batch, tokens))
        return self._outcome(video, text, batch.valid, batch.target, tokens.cut)[1]

    def compute(self, part: tuple[Batch, Tokens]) -> tuple[Tensor, Tensor]:
        """Unit vectors of the clips and captions of a micro-batch, [b, E] each."""
        batch, tokens = part
        video, text, _ = self.model(batch.video, tokens.ids)
        return video, text

    def gradients(self, step: Step) -> StepOutcome:
        """Add the gradients of the loss over all clips of the step, as one batch would give.

        See Note [Gradients of gathered features] for what the loss is divided by.
        """
        batches = [step.next_batch() for _ in range(step.parts)]
        with step.spans("tokenize"):
            tokens = [self.tokenize(batch) for batch in batches]
        valid = torch.cat([batch.valid for batch in batches])
        target = torch.cat([batch.target for batch in batches])
        share = (step.world if self.config.local_loss else 1) / step.clips
        outcome: Outcome | None = None

        def loss(video: Tensor, text: Tensor) -> Tensor:
            nonlocal outcome
            cut = sum(t.cut for t in tokens)
            total, outcome = self._outcome(video, text, valid, target, cut)
            return step.scaled(total * share)

        cached_backward(
            list(zip(batches, tokens, strict=True)), loss, own=self.model.logit_scale,
            model=self.model, step=step,
        )  # fmt: skip
        assert outcome is not None
        sums = {name: total.detach() for name, total in outcome.sums.items()}
        return StepOutcome(
            outcome.loss.detach(), sums, sum(batch.num_valid for batch in batches),
            tuple(name for batch in batches for name in batch.samples),
        )  # fmt: skip

    def tokenize(self, batch: Batch) -> Tokens:
        """The captions of a batch; ids on its device."""
        tokens = self.model.text.tokenize(batch.texts)
        return Tokens(send(tokens.ids, batch.video.device), tokens.cut)

    def _outcome(
        self, video: Tensor, text: Tensor, valid: Tensor, target: Tensor, cut: int
    ) -> tuple[Tensor, Outcome]:
        """The loss that has the gradient, and this rank's share of it with other sums.

        `top1` counts clips whose own caption is the nearest of the step's; `cut` the captions that
        were longer than the context.
        """
        config, own = self.config, own_rows(video)
        video, text = gather_with_gradient(video), gather_with_gradient(text)
        all_valid = gather_with_gradient(valid)
        rows = own if config.local_loss else slice(None)
        if config.loss == "info-nce":
            loss = partial(info_nce, scale=self.model.scale())
        else:
            relevancy = self.relevancy(gather_with_gradient(target)) if config.graded else None
            loss = partial(max_margin, relevancy_NN=relevancy, margin=config.margin)
        each = loss(video, text, valid_N=all_valid, rows=rows)
        with torch.no_grad():
            similarity = (video[own] @ text.T).masked_fill(~all_valid, -torch.inf)
            place = torch.arange(len(video), device=video.device)[own]
            hits = (similarity.argmax(dim=1) == place) & all_valid[own]
        sums = {"top1": hits.sum(), "cut": video.new_full((), cut)}
        return each.sum(), Outcome((each if config.local_loss else each[own]).sum(), sums)

    def relevancy(self, sets_NC: Tensor) -> Tensor:
        """Of each clip for each, float [N, N]: mean of the IoU of their verbs and of their nouns.

        Source: arXiv 2006.13256, on action retrieval.
        """
        parts = (sets_NC[:, : self.verbs], sets_NC[:, self.verbs :])
        return (_iou(parts[0]) + _iou(parts[1])) / 2


def _iou(sets_NC: Tensor) -> Tensor:
    shared = sets_NC @ sets_NC.T
    size = sets_NC.sum(dim=1)
    return shared / (size[:, None] + size[None, :] - shared)
