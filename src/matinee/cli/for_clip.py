"""`matinee pack --for-clip`: choose the profile, and show the table it was chosen from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from matinee.cli.common import busy, counting
from matinee.errors import ConfigError
from matinee.pack.choose import (
    Choice,
    candidates,
    choose_profile,
    parse_budget,
    sample_scenes,
)
from matinee.pack.cost import parse_clip, stored_costs
from matinee.pack.profiles import Profile, make_profile

if TYPE_CHECKING:
    from matinee.cli.pack import PackCommand
    from matinee.pack.annotations import Annotations

_SHOWN = 8  # rows of the table beside the chosen one


def profile_of(
    command: PackCommand, annotations: Annotations, say: Console
) -> tuple[Profile, Choice | None]:
    """The profile that the flags name, or that --for-clip chooses on some of the videos.

    Raises:
        ConfigError: flags that contradict each other, or a budget that nothing meets.
    """
    if command.for_clip is None:
        if command.budget is not None:
            raise ConfigError("--budget is for choosing a profile: give --for-clip too, as 16x4")
        return _named(command), None
    for flag in ("profile", "stride", "gop"):
        if getattr(command, flag) is not None:
            raise ConfigError(
                f"--for-clip {command.for_clip} chooses the {flag}, --{flag} "
                f"{getattr(command, flag)} sets it: leave one of them out"
            )
    clip = parse_clip(command.for_clip)
    budget = parse_budget(command.budget) if command.budget is not None else None
    profiles = candidates(
        stored_costs(), clip, crf=command.crf, preset=command.preset, short_side=command.short_side,
        chunk_seconds=command.chunk_seconds,
    )  # fmt: skip
    with counting("sampling", "videos") as step:
        scenes = sample_scenes([v.path for v in annotations.videos], command.short_side, step)
    with busy("encoding the sample"):
        choice = choose_profile(clip, scenes, profiles, budget=budget)
    show(choice, say)
    return choice.profile, choice


def check_flags(command: PackCommand) -> None:
    """Refuse what no profile can have, before any file is read.

    Raises:
        ConfigError: such a flag.
    """
    if command.for_clip is None and command.budget is None:
        _named(command)


def _named(command: PackCommand) -> Profile:
    name = command.profile or "layered"
    if command.stride is not None and name != "layered":
        raise ConfigError(f"--stride has no effect on the {name} profile: leave it out")
    if command.gop is not None and name == "intra":
        raise ConfigError("--gop has no effect on the intra profile: leave it out")
    return make_profile(
        name, stride=4 if command.stride is None else command.stride, gop=command.gop,
        crf=command.crf, preset=command.preset, short_side=command.short_side,
        chunk_seconds=command.chunk_seconds,
    )  # fmt: skip


def show(choice: Choice, say: Console) -> None:
    """Print the table, the choice, its reason, and the flags that name it."""
    table = Table(box=None, pad_edge=False)
    for name in ("", "profile", "stride", "gop"):
        table.add_column(name)
    for name in ("KB/frame", "", "ms/clip", "frames decoded"):
        table.add_column(name, justify="left" if not name else "right")
    fitting = [row for row in choice.rows if row.fits][:_SHOWN]
    over = [row for row in choice.rows if not row.fits]
    ends = {row.profile.name: row for row in reversed(choice.rows)}  # the fastest of each name
    for row in choice.rows:
        taken = row.profile == choice.profile
        if not (taken or row in fitting or row in over[-2:] or row in ends.values()):
            continue
        chosen, at = row.profile, row.estimate
        table.add_row(
            "→" if taken else "", chosen.name, str(chosen.stride), str(chosen.gop),
            f"{at.bytes_per_frame / 1000:.2f}",
            ("measured" if row.encoded else "predicted") + ("" if row.fits else ", too many"),
            f"{at.ms_per_clip:.1f}", f"{at.fed.total:.1f}",
        )  # fmt: skip
    say.print(table)
    cpu = stored_costs().machine.get("cpu", "the reference machine")
    say.print(f"bytes: {choice.sample}; ms: one core of {cpu}, ratios hold on others")
    if choice.note is not None:
        say.print(choice.note)
    say.print(f"chosen: {flags_of(choice.profile)}: {choice.reason}")


def flags_of(profile: Profile) -> str:
    """The flags that name a profile without choosing."""
    flags = f"--profile {profile.name}"
    if profile.name == "layered":
        flags += f" --stride {profile.stride}"
    return flags if profile.name == "intra" else f"{flags} --gop {profile.gop}"
