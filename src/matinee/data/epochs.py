"""`EpochLoader`: what every loader promises about order, positions and targets.

Which items make a batch follows from (seed, epoch), so the position (epoch, items taken) is all
there is to save, and moving there costs nothing. See Note [Exact data].

# Note [Ranks and micro-batches]
A training step takes the next G items of the epoch's order, whoever computes them. W ranks that
pass P micro-batches of b each (W·P·b = G) cut these G items into W·P consecutive micro-batches;
number p·W + r is the p-th of rank r. So one rank with four parts, two with two and four with one
compute the same micro-batches, and a position counted in items means the same to all of them.

Where the items of an epoch do not fill its last step, those that are left over are not seen in this
epoch: no step is smaller, and no item comes twice to fill it. The order of the next epoch is drawn
anew, so others are left over then.

In evaluation each rank holds a share of the samples, with all their views. Shares are equally long,
so that ranks compute equally many batches; the last ones begin again with the first samples, which
are merged so that each counts once (evaluation/ranks.py). Nothing is left out.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from matinee.data.batch import Batch
from matinee.data.clips import ClipSpec
from matinee.data.decode_cost import DecodeCost
from matinee.data.order import epoch_order, mixed_order, shares
from matinee.data.random import integer_seed
from matinee.data.transfer import send
from matinee.errors import ClipError, ConfigError
from matinee.pack.mixture import Mixture
from matinee.pack.reading.selection import SampleTable

_DIGESTED = 1 << 20  # names at a time


class EpochLoader(ABC):
    """Iterate over batches of a data set, epoch by epoch.

    `for batch in loader` goes to the end of the current epoch; the next `for` is the next epoch. A
    loop that was left early continues where it stopped.

    `all_samples` are the selected rows of `pack`, `samples` those that this rank reads (in training
    all of them), `num_items` the clips of an epoch of `samples`, `targets` a row for each row of
    the pack, `failed` the clips masked so far; `workers` and `mode` say who reads.

    Args:
        batch_size: clips a batch, on each rank.
        rank, world: which rank this is, of how many. See Note [Ranks and micro-batches].
        together: items that always follow each other, such as several crops of one decoded clip.

    Raises:
        ConfigError: an empty selection, fewer clips than a batch, a label not in `classes`,
            targets that do not fit.
    """

    workers: int
    mode: str

    def __init__(
        self,
        pack: SampleTable,
        *,
        split: str | None,
        clip: ClipSpec,
        batch_size: int,
        views: tuple[int, int] | None,
        repeats: int,
        group: int,
        seed: int,
        classes: tuple[str, ...] | None,
        targets: NDArray[Any] | None,
        device: str | torch.device,
        rank: int = 0,
        world: int = 1,
        together: int = 1,
    ) -> None:
        self.pack, self.clip, self.views = pack, clip, views
        self.classes = classes or pack.classes
        self.batch_size, self.group = batch_size, group
        if not 0 <= rank < world:
            raise ConfigError(f"rank {rank} of {world}: ranks are numbered 0 … world - 1")
        self.rank, self.world, self.together = rank, world, together
        self.seed, self.device = seed, torch.device(device)
        self.all_samples = pack.select(split)
        self.samples = self.all_samples if views is None else _share(self.all_samples, rank, world)
        self._per_sample = repeats * together if views is None else views[0] * views[1]
        for name, value in (("batch size", batch_size), ("repeats", repeats), ("group", group),
                            ("views", self._per_sample), ("together", together)):  # fmt: skip
            if value < 1:
                raise ConfigError(f"{name} {value}: at least 1")
        if batch_size % together:
            raise ConfigError(
                f"batches of {batch_size} clips cannot hold {together} crops of each decoded clip"
            )
        self.num_items = len(self.samples) * self._per_sample
        self._mixed = self._mix() if views is None and isinstance(pack, Mixture) else None
        whole = batch_size * group * world
        if views is None and self.num_items < whole:
            raise ConfigError(
                f"split {split!r} gives {self.num_items} clips an epoch, fewer than one batch of "
                f"{whole}: use a smaller batch or more repeats"
            )
        self.targets = self._label_indices() if targets is None else targets
        if len(self.targets) != len(pack):
            raise ConfigError(f"{len(self.targets)} targets for a pack of {len(pack)} samples")
        self._swaps = clip.swaps(self.classes)
        if self._swaps and self.targets.ndim > 1:
            raise ConfigError("--clip.flip-swap needs one label a sample, not several")
        self._digest = self._identity()
        self._order: tuple[int, NDArray[np.int64]] | None = None
        self.epoch = 0
        self.position = 0  # batches of this epoch that were handed out
        self.failed: list[ClipError] = []

    def _mix(self) -> tuple[list[int], list[int]]:
        """Runs of items that each pack of a mixture has, and gives to an epoch.

        Raises:
            ConfigError: a pack without samples, or with too small a part.
        """
        assert isinstance(self.pack, Mixture)
        held = np.diff(np.searchsorted(self.all_samples, self.pack.starts))
        each = self._per_sample // self.together
        sizes = [int(count) * each for count in held]
        given = sizes if self.pack.weights is None else shares(sum(sizes), self.pack.weights)
        for name, size, count in zip(self.pack.names, sizes, given, strict=True):
            if not size or not count:
                why = "has no such sample" if not size else "has too small a weight for one clip"
                raise ConfigError(f"{name}, one of {self.pack.path}, {why}: leave it out")
        return sizes, given

    def _identity(self) -> str:
        """A digest of what item numbers mean."""
        what: list[Any] = [_digest(self.pack.samples.column("sample"), self.all_samples)]
        what += [self._per_sample, self.together, self._mixed]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]

    def _label_indices(self) -> NDArray[np.int64]:
        labels = self.pack.samples.column("label").cast(pa.string())
        place = pc.index_in(labels, value_set=pa.array(self.classes, pa.string()))
        indices = pc.fill_null(place, -1).to_numpy().astype(np.int64)
        selected = pa.array(self.all_samples)
        missing = pc.and_(pc.is_null(place), pc.is_valid(labels)).take(selected)
        unknown = sorted(pc.unique(labels.take(selected).filter(missing)).to_pylist())
        if unknown:
            raise ConfigError(
                f"{self.pack.path} has labels that are not among the {len(self.classes)} known "
                f"classes: {', '.join(unknown[:5])}{' …' if len(unknown) > 5 else ''}"
            )
        return np.asarray(indices)

    def __len__(self) -> int:
        """Batches of an epoch, on each rank."""
        if self.views is None:
            return self.num_items // (self._taken * self.group) * self.group
        return math.ceil(self.num_items / self.batch_size)

    @property
    def _taken(self) -> int:
        """Items that all ranks together take with each batch."""
        return self.batch_size * self.world

    def state_dict(self) -> dict[str, int | str]:
        """The position: of the batches handed out, not of those read ahead; in items of all ranks,
        so that another number of ranks can go on from it.
        """
        return {
            "epoch": self.epoch,
            "taken": self.position * self._taken,
            "seed": self.seed,
            "items": self._digest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position. Costs the same wherever it is.

        Raises:
            ConfigError: the state is of another seed or does not fit this loader.
        """
        missing = {"epoch", "taken", "seed", "items"} - set(state)
        if missing:
            raise ConfigError(f"no saved position of a loader: it has no {min(missing)!r}")
        if state["items"] != self._digest:
            raise ConfigError("the saved position is of other samples, repeats or crops")
        if state["seed"] != self.seed:
            raise ConfigError(f"the saved data order has seed {state['seed']}, this {self.seed}")
        position, within = divmod(int(state["taken"]), self._taken)
        if within or not 0 <= position <= len(self):
            raise ConfigError(
                f"saved after {state['taken']} clips of an epoch, which is no whole number of the "
                f"{len(self)} batches of {self._taken}: resume with the same batch size"
            )
        self.epoch, self.position = int(state["epoch"]), position

    def __iter__(self) -> Iterator[Batch]:
        if self.position == len(self):  # restored at the very end of an epoch
            self.epoch, self.position = self.epoch + 1, 0
        epoch = self.epoch
        while self.epoch == epoch:
            yield self._step()  # kept nowhere here, or its memory would outlive its step

    def _step(self) -> Batch:
        """The next batch; the position behind it."""
        batch = self._next()
        self.position += 1
        if self.position == len(self):
            self.epoch, self.position = self.epoch + 1, 0
        return batch

    @abstractmethod
    def _next(self) -> Batch:
        """The batch at `epoch`, `position`."""

    def _items(self, epoch: int, batch: int) -> NDArray[np.int64]:
        """Numbers of the items of a batch: 0 … num_items - 1; beyond, an item of a mixture that
        comes again in this epoch.
        """
        if self._order is None or self._order[0] != epoch:
            if self._mixed is not None:
                runs = mixed_order(*self._mixed, seed=self.seed, epoch=epoch)
            else:
                runs = epoch_order(
                    self.num_items // self.together, seed=self.seed, epoch=epoch,
                    shuffle=self.views is None,
                )  # fmt: skip
            order = (runs[:, None] * self.together + np.arange(self.together)).reshape(-1)
            self._order = (epoch, order)
        number = batch if self.views is not None else batch * self.world + self.rank
        return self._order[1][number * self.batch_size : (number + 1) * self.batch_size]

    def _rows(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of the pack that items are of."""
        return self.samples[items % self.num_items // self._per_sample]

    def _row(self, item: int) -> int:
        """The row of the pack that an item is of."""
        return int(self.samples[item % self.num_items // self._per_sample])

    def _target(self, rows: NDArray[np.int64], flips: Sequence[bool]) -> Tensor:
        """Targets on the device; mirrored clips get the label that theirs turns into."""
        target = self.targets[rows]
        if self._swaps:
            pairs = zip(target.tolist(), flips, strict=True)
            target = np.array([self._swaps.get(t, t) if f else t for t, f in pairs])
        return send(torch.from_numpy(target), self.device)

    def _seeds(self, epoch: int, items: NDArray[np.int64]) -> Tensor:
        """int64 [B]: where everything starts that is drawn for a clip later, on whichever rank."""
        if self.views is not None:  # numbered within the share of this rank
            first = self.rank * len(self.samples) * self._per_sample
            items = (first + items) % (len(self.all_samples) * self._per_sample)
        return torch.tensor(
            [integer_seed(self.seed, epoch, item, "clip") for item in items.tolist()]
        )

    def take_costs(self) -> DecodeCost:
        """What reading clips took since the last call; zero where all data lies in memory."""
        return DecodeCost()

    def explain(self) -> str:
        """Who reads the data, and why so many."""
        return "data in memory"

    @abstractmethod
    def close(self) -> None:
        """Free workers and memory; iterating again takes them anew."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _digest(column: Any, rows: NDArray[np.int64]) -> str:
    """Of strings, however they are kept."""
    lengths, letters = hashlib.sha256(), hashlib.sha256()
    for start in range(0, len(rows), _DIGESTED):
        some = column.take(pa.array(rows[start : start + _DIGESTED])).cast(pa.string())
        lengths.update(pc.binary_length(some).to_numpy().astype("<i8").tobytes())
        for chunk in some.chunks if isinstance(some, pa.ChunkedArray) else [some]:
            whole = pc.binary_join(pa.ListArray.from_arrays([0, len(chunk)], chunk), "")
            letters.update(whole[0].as_buffer())
    return lengths.hexdigest() + letters.hexdigest()


def _share(samples: NDArray[np.int64], rank: int, world: int) -> NDArray[np.int64]:
    """The samples that one of `world` ranks evaluates; beyond the last it begins again."""
    each = math.ceil(len(samples) / world)
    return samples[(rank * each + np.arange(each)) % len(samples)] if world > 1 else samples
