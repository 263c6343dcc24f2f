"""The compiled functions of the message path (`_kernel.c`), or None: not built here, switched off, or not for this machine.

Callers have the same in Python; nothing depends on it but how much CPU time an entry takes.
"""

from __future__ import annotations

import os
from typing import Any, Final

REVISION: Final = 6
"""Raised with every change of what the compiled functions take or answer: a build of another revision is not used."""

SWITCH: Final = "MAGNETAR_KERNEL"
"""Environment variable: `off` does without the compiled functions."""


def _loaded() -> Any:
    if os.environ.get(SWITCH) == "off":
        return None
    try:
        from magnetar.wire.pulsar import _kernel
    except ImportError:
        return None
    return _kernel if _kernel.REVISION == REVISION else None


kernel: Final[Any] = _loaded()
