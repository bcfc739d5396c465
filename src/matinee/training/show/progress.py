"""What a run tells while it goes, and to whom."""

from __future__ import annotations

from typing import Any, Protocol


class Progress(Protocol):
    """Told about a run as it goes, by rank 0. `row` is a line of metrics.jsonl."""

    def start(
        self, *, total: int, facts: list[str], headline: str, epochs: int | None = None
    ) -> None:
        """Before the first step: steps of the whole run, what was chosen and why, the validation
        metric that counts, epochs of the whole run.
        """

    def step(self, step: int) -> None:
        """How many steps are done. Called after each, so it costs next to nothing."""

    def log(self, row: dict[str, Any]) -> None:
        """A row of training, each `log_every` steps and at the end of an epoch."""

    def validated(self, row: dict[str, Any]) -> None:
        """A row of validation."""

    def saved(self, step: int, seconds: float) -> None:
        """A checkpoint was handed over to be written, which kept training for `seconds`."""

    def note(self, text: str) -> None:
        """Something that happened and should be known, in one line. From any thread."""

    def __enter__(self) -> Progress: ...
    def __exit__(self, *exc: object) -> None: ...


class Silent:
    """Shows nothing."""

    def start(
        self, *, total: int, facts: list[str], headline: str, epochs: int | None = None
    ) -> None:
        pass

    def step(self, step: int) -> None:
        pass

    def log(self, row: dict[str, Any]) -> None:
        pass

    def validated(self, row: dict[str, Any]) -> None:
        pass

    def saved(self, step: int, seconds: float) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *exc: object) -> None:
        pass
