"""What went wrong in a task, said as it was there: Spark wraps errors of Python workers into its own, with their text."""

from __future__ import annotations

import re
from typing import Final

from magnetar.base.errors import MagnetarError
from magnetar.pipeline import errors as pipeline_errors
from magnetar.pipeline.connect import errors as connect_errors
from magnetar.pipeline.errors import DamagedStateError

DAMAGED_FIX: Final = "put it back from a copy, or drop the pipeline and run it from the beginning of its topics"

_NAMED: Final = re.compile(r"(?m)^(?:.*\s)?(magnetar\.[\w.]+)\.(\w+Error): (.*)$")


def told(error: BaseException) -> BaseException:
    """The error that magnetar raised in a task, as its own class; the error itself when it is none of ours."""
    if isinstance(error, MagnetarError):
        return error
    for _, name, text in reversed(_NAMED.findall(str(error))):
        kind = getattr(pipeline_errors, name, None) or getattr(connect_errors, name, None)
        if isinstance(kind, type) and issubclass(kind, MagnetarError):
            return kind(f"{text.strip()}; {DAMAGED_FIX}" if kind is DamagedStateError else text.strip())
    return error


def is_slow_start(error: BaseException) -> bool:
    """Whether a Python process that Spark started was not there in time, which says nothing of what it was to do."""
    return "connect back" in str(error)
