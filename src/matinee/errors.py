"""The package's own exceptions. Each message says what was given, what is wrong, what to do."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """The first sentence of another library's error, or its kind if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].split(". ")[0] if lines else type(error).__name__


class MatineeError(Exception):
    """Root of every error a user can cause; the command line prints it as one line."""


class ConfigError(MatineeError):
    """A setting that cannot be used, or settings that contradict each other."""


class MediaError(MatineeError):
    """A video file that cannot be read soundly; the text is the reason alone, without the path."""


class AnnotationError(MatineeError):
    """Labels or splits that cannot be understood, with file and line."""


class PackError(MatineeError):
    """A pack that is missing, unfinished, damaged or made by a newer version."""


class ClipError(MatineeError):
    """One clip could not be read. Carries `sample` (id), `file` and `reason`."""

    def __init__(self, sample: str, file: str, reason: str) -> None:
        super().__init__(f"sample {sample!r} in {file}: {reason}")
        self.sample = sample
        self.file = file
        self.reason = reason

    def __reduce__(self) -> tuple[type[ClipError], tuple[str, str, str]]:
        return ClipError, (self.sample, self.file, self.reason)


class WorkerDied(MatineeError):
    """A worker process ended without being asked to."""


class MissingExtra(MatineeError, ImportError):
    """An optional dependency is absent; the message holds the install command."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package {package!r}, which is not installed: "
            f"pip install 'matinee[{extra}]'"
        )
        self.package, self.extra = package, extra

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        return MissingExtra, (self.package, self.extra)
