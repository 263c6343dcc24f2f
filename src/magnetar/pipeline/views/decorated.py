"""A Python function of a program as CREATE FUNCTION ... LANGUAGE python: its own text, which manifests keep and other processes run."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, get_type_hints

from magnetar.pipeline.errors import CatalogError
from magnetar.pipeline.sql.printer import literal, quote

_TYPES: Final = {
    "int": "BIGINT",
    "float": "DOUBLE",
    "bool": "BOOLEAN",
    "str": "VARCHAR",
    "bytes": "BYTEA",
    "Decimal": "NUMERIC",
    "date": "DATE",
    "datetime": "TIMESTAMPTZ",
    "dict": "JSONB",
}
"""By the names of Python's types."""


def function_statement(
    function: Callable[..., Any], signature: str, name: str = "", *, strict: bool = False, batch: bool = False
) -> str:
    """`signature`: `(a INT, b INT) RETURNS INT`, empty for that of the annotations. Raises CatalogError."""
    known = getattr(function, "__name__", "")
    said = signature.strip() or _signature(function, known)
    options = f" WITH (handler = {literal(known)}{', batch = true' if batch else ''})"
    return (
        f"CREATE FUNCTION {quote(name or known)}{said} LANGUAGE python{' STRICT' if strict else ''}{options} "
        f"AS {literal(_text(function, known))}"
    )


def _signature(function: Callable[..., Any], name: str) -> str:
    hints = get_type_hints(function)
    parts = []
    for each in (*inspect.signature(function).parameters, "return"):
        kind: Any = hints.get(each)
        if getattr(kind, "__args__", None) and type(None) in kind.__args__:  # int | None
            kind = next(one for one in kind.__args__ if one is not type(None))
        found = _TYPES.get(getattr(kind, "__name__", ""))
        if found is None:
            what = "its result" if each == "return" else f"parameter {each}"
            raise CatalogError(
                f"function {name}: the type of {what} is not known; annotate it with one of {', '.join(_TYPES)}, or write "
                '@pipeline.function("(a INT) RETURNS INT")'
            )
        parts.append(found if each == "return" else f"{quote(each)} {found}")
    return f"({', '.join(parts[:-1])}) RETURNS {parts[-1]}"


def _text(function: Callable[..., Any], name: str) -> str:
    """The function without its decorators, and the imports that it needs."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        closure = inspect.getclosurevars(function)
    except (OSError, TypeError, SyntaxError) as error:
        raise CatalogError(
            f"function {name}: its text cannot be had ({error}); write it in a file, or as CREATE FUNCTION ... LANGUAGE python"
        ) from None
    node = tree.body[0]
    if not isinstance(node, ast.FunctionDef):
        raise CatalogError(f"{name} is not written with def; decorate a plain function")
    node.decorator_list = []
    for hint in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
        hint.annotation = None
    node.returns = None
    imports = []
    for used, value in {**closure.globals, **closure.nonlocals}.items():
        if isinstance(value, ModuleType):
            imports.append(f"import {value.__name__} as {used}\n")
        elif getattr(value, "__module__", "").partition(".")[0] not in ("", "__main__") and _is_imported(
            value, function
        ):
            imports.append(f"from {value.__module__} import {value.__qualname__} as {used}\n")
        else:
            raise CatalogError(
                f"function {name} uses {used} of its module, which other processes do not have; define it within the function"
            )
    return "".join(sorted(imports)) + ast.unparse(node)


def _is_imported(value: Any, function: Callable[..., Any]) -> bool:
    """Whether it is a class or function of another module."""
    return (
        value.__module__ != getattr(function, "__module__", "")
        and hasattr(value, "__qualname__")
        and "." not in value.__qualname__
    )
