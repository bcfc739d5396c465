"""Optional dependencies: imported when needed, missed with the command that installs them."""

from __future__ import annotations

import importlib
from types import ModuleType

from matinee.errors import MissingExtra


def require(package: str, extra: str) -> ModuleType:
    """Import `package`.

    Raises:
        MissingExtra: it is not installed; the message says `pip install 'matinee[extra]'`.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.split(".", maxsplit=1)[0]:
            raise
        raise MissingExtra(package.split(".", maxsplit=1)[0], extra) from None
