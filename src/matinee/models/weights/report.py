"""What became of each tensor of a file of weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ImportReport:
    """How a file of weights fits a network. Names are the network's, of `unexpected` the file's."""

    layout: str
    """Whose names the file has."""
    matched: list[str]
    """Loaded, changed ones included."""
    missing: list[str]
    """In the network alone: left as they were initialised."""
    unexpected: list[str]
    """In the file alone, though the network has that part (tower, decoder)."""
    aside: list[str]
    """In the file, of parts that the network lacks, such as the text tower."""
    changed: list[tuple[str, str]]
    """What was interpolated, spread or left new, and how."""
    notes: list[str]
    """What the weights were trained with and this network has not."""
    share: float
    """Numbers loaded, of all numbers in the network and in `unexpected`. Heads, which belong to a
    task, do not count, nor does a temporal embedding that the file lacks."""
    classifier: str
    """loaded, new or none."""

    def sentence(self, path: object) -> str:
        """For the log of a run."""
        classifier = {"loaded": "classifier included", "new": "a new classifier"}
        said = [f"{len(self.matched)} tensors from {path} ({self.layout} names)"]
        said += [classifier[self.classifier]] if self.classifier in classifier else []
        if self.missing:
            said.append(f"not in the file: {_some(self.missing)}")
        if self.unexpected:
            said.append(f"of the file unused: {_some(self.unexpected)}")
        said += [f"{key} {why}" for key, why in self.changed]
        return f"weights: {'; '.join([', '.join(said), *self.notes])}"


def _some(keys: list[str]) -> str:
    return f"{len(keys)} ({', '.join(keys[:2])}{', …' if len(keys) > 2 else ''})"
