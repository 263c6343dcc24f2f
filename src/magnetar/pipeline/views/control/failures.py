"""What went wrong in a task, said as it was there: Spark wraps errors of Python workers into its own, with their text."""

from __future__ import annotations

import re
from typing import Final

from magnetar.base.errors import MagnetarError
from magnetar.pipeline import errors as pipeline_errors
from magnetar.pipeline.connect import errors as connect_errors
from magnetar.pipeline.errors import DamagedStateError, FailedExpressionError, UndecodableMessageError
from magnetar.pipeline.views.epoch.spark_steps import STRICT

DAMAGED_FIX: Final = "put it back from a copy, or drop the pipeline and run it from the beginning of its topics"

_NAMED: Final = re.compile(r"(?m)^(?:.*\s)?(magnetar\.[\w.]+)\.(\w+Error): (.*)$")
_RAISED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)\s+SQLSTATE: P0001", re.DOTALL)
_ROW_ID: Final = re.compile(r" for the row (\S*):((?:[a-p][0-9A-F]+)+) ")
"""As `views.source.frame.row_id` makes it: behind each letter the hexadecimal digits of a number, and the letter says how many."""
_SQLSTATE: Final = re.compile(r"\s+SQLSTATE: \w{5}\b.*")
_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] [^\n]*?SQLSTATE: \w{5}")
"""Spark's own errors begin with their class and end with their state, wherever in its text they stand."""


def told(error: BaseException) -> BaseException:
    """The error that magnetar raised in a task, as its own class; the error itself when it is none of ours."""
    if isinstance(error, MagnetarError):
        return error
    for _, name, text in reversed(_NAMED.findall(str(error))):
        kind = getattr(pipeline_errors, name, None) or getattr(connect_errors, name, None)
        if isinstance(kind, type) and issubclass(kind, MagnetarError):
            return kind(f"{text.strip()}; {DAMAGED_FIX}" if kind is DamagedStateError else text.strip())
    raised = _RAISED.search(str(error))  # by `raise_error`, of decoding and of expressions
    if raised is None:
        return error
    return _failed_expression(raised[1]) if raised[1].startswith(STRICT) else UndecodableMessageError(raised[1])


def _failed_expression(text: str) -> FailedExpressionError:
    """With the position of the row's message in place of the row's id, where it has one."""
    view = text.removeprefix(STRICT).partition(":")[0]
    fix = (
        f"send the row right, or write ALTER MATERIALIZED VIEW {view} SET (on.error = 'null') or 'dead_letter' into the file, and run it "
        "again"
    )
    return FailedExpressionError(f"{_ROW_ID.sub(_position, text)}; nothing of the epoch is kept: {fix}")


def _position(found: re.Match[str]) -> str:
    where, numbers = found[1], found[2]
    position = []
    while numbers:
        digits = ord(numbers[0]) - 96
        number = int(numbers[1 : digits + 1], 16)
        position.append(str(number - 2**64 if number >= 2**63 else number))
        numbers = numbers[digits + 1 :]
    partition = f"partition {where} " if where.lstrip("-").isdigit() else f"{where} "
    return f" for the message {partition}{':'.join(position)} "


def cause(error: BaseException) -> str:
    """One line for people: of what Spark says neither the page of Java, nor the call that failed, nor its number of the error."""
    text = str(error).strip()
    if isinstance(error, MagnetarError) or not text:
        return " ".join(text.split()) or repr(error)
    found = _CONDITION.findall(text)
    if found:  # the innermost is the cause of those around it
        return _SQLSTATE.sub("", found[-1]).partition("] ")[2].strip()
    lines = []
    for line in text.splitlines():
        if line.startswith(("\tat ", "JVM stacktrace")):
            break
        if not line.startswith("An error occurred while calling"):
            lines.append(line)
    return " ".join(" ".join(lines).removeprefix(": ").split()) or repr(error)


def is_slow_start(error: BaseException) -> bool:
    """Whether a Python process that Spark started was not there in time, which says nothing of what it was to do."""
    return "connect back" in str(error)
