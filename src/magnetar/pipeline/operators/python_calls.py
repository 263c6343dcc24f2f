"""Runs a function in Python over Arrow columns, in Spark's tasks and where views are served: one call for a row, or for a batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from magnetar.pipeline.sql.python_functions import ERROR, VALUE, PythonCode

ERROR_CHARACTERS_MAX: Final = 500


class PythonFunctionError(Exception):
    """The function raised, or returned what its type does not take."""


class PythonCalls:
    """Of one function. It is sent to tasks as its text, and compiled once in each process. `returns`: Arrow's type of its result."""

    def __init__(self, code: PythonCode, returns: pa.DataType) -> None:
        self._code = code
        self._returns = returns

    def with_errors(self, columns: Sequence[pa.Array], rows: int) -> pa.StructArray:
        """For each row the result and NULL, or NULL and what was raised."""
        values, errors = self._each(columns, rows)
        return pa.StructArray.from_arrays([values, pa.array(errors, pa.string())], names=[VALUE, ERROR])

    def values(self, columns: Sequence[pa.Array], rows: int) -> pa.Array:
        """For each row the result. Raises PythonFunctionError for the first that has none."""
        values, errors = self._each(columns, rows)
        failed = next((error for error in errors if error is not None), None)
        if failed is not None:
            raise PythonFunctionError(f"function {self._code.name}: {failed}")
        return values

    def _each(self, columns: Sequence[pa.Array], rows: int) -> tuple[pa.Array, list[str | None]]:
        try:
            function = _compiled(self._code.text, self._code.handler)
        except Exception as error:
            return pa.nulls(rows, self._returns), [_told(error)] * rows
        if self._code.batch:
            return self._batch(function, columns, rows)
        given = [_read(column, kind) for column, kind in zip(columns, self._code.parameters, strict=True)]
        results: list[Any] = []
        errors: list[str | None] = []
        for at in range(rows):
            arguments = [column[at] for column in given]
            if self._code.strict and any(argument is None for argument in arguments):
                results.append(None)
                errors.append(None)
                continue
            try:
                results.append(self._written(function(*arguments)))
                errors.append(None)
            except Exception as error:
                results.append(None)
                errors.append(_told(error))
        return self._typed(results, errors), errors

    def _batch(
        self, function: Callable[..., Any], columns: Sequence[pa.Array], rows: int
    ) -> tuple[pa.Array, list[str | None]]:
        """All rows at once; where that fails, each by itself, so that the others have their results."""
        try:
            found = function(*columns)
            if isinstance(found, pa.ChunkedArray):
                found = found.combine_chunks()
            found = found if isinstance(found, pa.Array) else pa.array(found, self._returns)
            if len(found) != rows:
                raise ValueError(f"{rows} rows were given and {len(found)} results returned")
            return (found if found.type == self._returns else found.cast(self._returns)), [None] * rows
        except Exception as error:
            if rows <= 1:
                return pa.nulls(rows, self._returns), [_told(error)] * rows
        parts = [self._batch(function, [column.slice(at, 1) for column in columns], 1) for at in range(rows)]
        return pa.concat_arrays([part for part, _ in parts]), [error for _, errors in parts for error in errors]

    def _written(self, value: Any) -> Any:
        """A result as Arrow takes it. Raises for what the type does not take."""
        if value is None:
            return None
        if self._code.returns == "json":
            return json.dumps(value, default=str)
        if pa.types.is_decimal(self._returns):
            exact = value if isinstance(value, Decimal) else Decimal(str(value))
            return exact.quantize(Decimal(1).scaleb(-self._returns.scale), ROUND_HALF_UP)
        return value

    def _typed(self, results: list[Any], errors: list[str | None]) -> pa.Array:
        try:
            return pa.array(results, self._returns)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            pass
        for at, value in enumerate(results):
            try:
                pa.array([value], self._returns)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                results[at], errors[at] = None, f"returned what its type does not take: {_told(error)}"
        return pa.array(results, self._returns)


def _read(column: pa.Array, kind: str | None) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if kind == "json":
        return [None if value is None else json.loads(value) for value in values]
    if kind == "timestamp":
        return [
            None if value is None else value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
            for value in values
        ]
    return values


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]


@lru_cache(maxsize=256)
def _compiled(text: str, handler: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"__name__": f"magnetar_function_{handler}"}
    exec(compile(text, f"<function {handler}>", "exec"), names)  # what the author of the function asked for
    found: Callable[..., Any] = names[handler]
    return found
