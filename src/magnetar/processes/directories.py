"""Data directories."""

from __future__ import annotations

import os
from pathlib import Path

from magnetar.base.errors import StartupError


def prepare_directory(path: Path, option: str = "--data-dir") -> None:
    """Create the data directory. Raises StartupError when it cannot be used."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(
            f"cannot create the data directory {path}: {error.strerror}; choose another {option}"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise StartupError(
            f"the data directory {path} is not writable; change its permissions or choose another {option}"
        )
