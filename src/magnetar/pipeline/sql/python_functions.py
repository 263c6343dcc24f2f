"""Functions of CREATE FUNCTION ... LANGUAGE python: what is checked of their text, and the name by which engines call them. Pure.

A call is written out as a call of a name that is made of the function's definition, so a function that is changed is another one: a plan
that calls it is another plan, and two definitions stand side by side in one engine. The text is read and never run here.
"""

from __future__ import annotations

import ast
import hashlib
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from magnetar.pipeline.sql.statements import CreateFunction
from magnetar.pipeline.sql.typed import kind_of_type
from magnetar.pipeline.sql.types import spark_type

CALLED: Final = "python_function_"
"""How the names begin by which engines call functions in Python."""
VALUE, ERROR = "v", "e"
"""The fields of what Spark gets of a call: the result, and of a row for which the function failed what it raised."""

BODY_CHARACTERS_MAX: Final = 64 * 1024

_NAME: Final = re.compile(rf"{CALLED}(\w+?)_[0-9a-f]{{16}}\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PythonCode:
    """What a process needs to run a function: `parameters` and `returns` are kinds of values, where they are known."""

    name: str
    text: str
    handler: str
    parameters: tuple[str | None, ...]
    returns: str | None
    strict: bool
    batch: bool


def checked_code(function: CreateFunction) -> CreateFunction:
    """With the text without what all its lines are indented by, and with its handler. Raises ValueError with the reason."""
    if not function.parameters:
        raise ValueError("it has no parameters, so it is one value: write the value in its place")
    text = textwrap.dedent(function.body).strip("\n")
    if len(text) > BODY_CHARACTERS_MAX:
        raise ValueError(f"its text is longer than {BODY_CHARACTERS_MAX} characters; import the code from a package")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        place = f" in line {line} of its text" if line else ""
        raise ValueError(f"its Python cannot be read{place}: {getattr(error, 'msg', None) or error}") from None
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.AsyncFunctionDef) and node.name in (function.handler, function.name):
            raise ValueError(f"{node.name} is a coroutine; write def without async")
    wanted = function.handler or next(
        (name for name in (function.name, function.name.lower()) if name in defined), function.name
    )
    if wanted not in defined:
        there = f" (there is {', '.join(defined)})" if defined else ""
        raise ValueError(
            f"its text defines no function {wanted}{there}; write def {wanted}(...), or name another one WITH (handler = '...')"
        )
    given = defined[wanted].args
    positional = [*given.posonlyargs, *given.args]
    least, most = len(positional) - len(given.defaults), None if given.vararg else len(positional)
    needed = sum(default is None for default in given.kw_defaults)
    count = len(function.parameters)
    if needed or count < least or (most is not None and count > most):
        raise ValueError(
            f"{wanted} in its text takes {least if least == most else f'{least} or more'} arguments, and the function has {count} "
            "parameters"
        )
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(defined[wanted])):
        raise ValueError(f"{wanted} yields values; a function returns one")
    return function.with_code(text, wanted)


def called_name(function: CreateFunction) -> str:
    """The name by which engines know this definition."""
    told = repr(
        (function.parameters, function.returns, function.body, function.handler, function.strict, function.batch)
    )
    plain = re.sub(r"\W", "_", function.name.lower(), flags=re.ASCII)[:40]
    return f"{CALLED}{plain}_{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def shown(text: str) -> str:
    """A text for people, with the functions by the names that they have."""
    return _NAME.sub(lambda found: found[1].lower(), text)


def code_of(function: CreateFunction) -> PythonCode:
    return PythonCode(
        function.name,
        function.body,
        function.handler,
        tuple(kind_of_type(kind) for _, kind in function.parameters),
        kind_of_type(function.returns),
        function.strict,
        function.batch,
    )


def spark_returns(function: CreateFunction) -> str:
    """Spark's type of what a call gives."""
    return f"STRUCT<{VALUE}: {spark_type(function.returns)}, {ERROR}: STRING>"


def of_python(functions: Iterable[CreateFunction]) -> list[CreateFunction]:
    return [each for each in functions if each.language == "python"]
