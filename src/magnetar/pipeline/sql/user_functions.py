"""Functions of CREATE FUNCTION: each call is replaced before a query is read, by the expression of LANGUAGE sql, or by an engine's function
for LANGUAGE python (`python_functions`). Pure.

Calls are found among the tokens, so the places of errors stay in their lines; what stands for a call is one line. Arguments are cast to the
parameters' types and the result to that of RETURNS, as PostgreSQL does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlglot import exp

from magnetar.pipeline.errors import SqlError
from magnetar.pipeline.sql.expressions import check_expression, read_query
from magnetar.pipeline.sql.functions import FUNCTIONS
from magnetar.pipeline.sql.lexer import MAX_STATEMENT_TOKENS, Kind, Token, statements_of
from magnetar.pipeline.sql.postgres import BY_NAME
from magnetar.pipeline.sql.printer import quote
from magnetar.pipeline.sql.python_functions import called_name, checked_code
from magnetar.pipeline.sql.statements import CreateFunction

Functions = Mapping[str, CreateFunction]
"""By lower-case name."""

PARAMETERS_MAX: Final = 100

_NOT_DETERMINISTIC: Final = frozenset(
    [
        "random",
        "rand",
        "randn",
        "now",
        "proctime",
        "current_timestamp",
        "current_date",
        "current_time",
        "localtime",
        "localtimestamp",
        "clock_timestamp",
        "statement_timestamp",
        "transaction_timestamp",
        "timeofday",
        "uuid",
        "gen_random_uuid",
        "nextval",
        "setseed",
        "monotonically_increasing_id",
        "current_user",
        "session_user",
        "version",
        "input_file_name",
        "spark_partition_id",
    ]
)


_DEPENDS: Final = (
    "its value depends on more than its parameters, so what a view holds could not be computed again; "
    "pass the time and the like as an argument"
)


def checked(function: CreateFunction, functions: Functions, line: int, column: int) -> CreateFunction:
    """With the calls of other functions in its expression replaced. Raises SqlError."""

    def refuse(why: str) -> SqlError:
        return SqlError(f"function {function.name}: {why}", line, column)

    names = [name.lower() for name, _ in function.parameters]
    if len(set(names)) != len(names):
        raise refuse("two of its parameters have the same name")
    if len(names) > PARAMETERS_MAX:
        raise refuse(f"it has more than {PARAMETERS_MAX} parameters")
    call = read_query(f"SELECT {quote(function.name)}({', '.join(['1'] * len(names))})").selects[0]
    if not isinstance(call, exp.Anonymous) or function.name.upper() in (*FUNCTIONS, *BY_NAME.split()):
        raise refuse("there is a function of that name; choose another")
    if function.language == "python":
        try:
            return checked_code(function)
        except ValueError as error:
            raise refuse(str(error)) from None
    body = expanded(function.body, functions)
    try:
        check_expression(_in_one_line(body))
        tree = read_query(f"SELECT {_in_one_line(body)}")
    except SqlError as error:
        raise refuse(f"its expression cannot be read: {_words(error)}") from None
    nodes: list[Any] = list(tree.find_all(exp.Column, exp.Select, exp.AggFunc, exp.Window, exp.Func))
    for node in nodes:
        if isinstance(node, exp.Select | exp.AggFunc | exp.Window):
            if node is not tree:
                raise refuse("it is one expression of its parameters, without subqueries, aggregates and windows")
        elif isinstance(node, exp.Column):
            if node.table or node.name.lower() not in names:
                raise refuse(f"{node.sql()} is none of its parameters")
        elif isinstance(node, exp.Anonymous) and node.name.lower() == function.name.lower():
            raise refuse("it calls itself")
        elif (node.name if isinstance(node, exp.Anonymous) else node.sql_name()).lower() in _NOT_DETERMINISTIC:
            raise refuse(_DEPENDS)
    if any(token.keyword.lower() in _NOT_DETERMINISTIC for token in _tokens(body)):
        raise refuse(_DEPENDS)
    return function.with_body(_in_one_line(body))


def expanded(text: str, functions: Functions) -> str:
    """A query or expression without calls of these functions. Raises SqlError."""
    if not functions or not any(token.value.lower() in functions for token in _tokens(text)):
        return text
    found = _expanded(text, functions)
    _tokens(found)  # its bounds hold for what it has become
    return found


def calls(text: str, function: str) -> bool:
    """Whether a query calls the function of that lower-case name, as it was written."""
    tokens = _tokens(text)
    return any(_called(tokens, at, {function: _ANY}) is not None for at in range(len(tokens) - 1))


_ANY: Final = CreateFunction("", (), "", "")


def _expanded(text: str, functions: Functions) -> str:
    tokens = _tokens(text)
    parts, at, done = [], 0, 0
    while at < len(tokens) - 1:
        function = _called(tokens, at, functions)
        if function is None:
            at += 1
            continue
        arguments, last = _arguments(text, tokens, at + 1)
        if len(arguments) != len(function.parameters):
            raise SqlError(
                f"{function.name} takes {len(function.parameters)} arguments and is given {len(arguments)}: "
                f"{function.name}({', '.join(f'{name} {kind}' for name, kind in function.parameters)})"
            )
        parts.append(text[done : tokens[at].start])
        parts.append(_call(function, [_expanded(argument, functions) for argument in arguments]))
        if sum(map(len, parts)) > _CHARACTERS_MAX:
            raise SqlError(
                f"with {function.name} written out the statement is too long; give parts of it names in views"
            )
        done, at = tokens[last].end, last + 1
    return "".join([*parts, text[done:]])


_CHARACTERS_MAX: Final = 8 * MAX_STATEMENT_TOKENS


def _called(tokens: Sequence[Token], at: int, functions: Functions) -> CreateFunction | None:
    token, after = tokens[at], tokens[at + 1]
    if token.kind not in (Kind.WORD, Kind.QUOTED) or after.kind is not Kind.SYMBOL or after.value != "(":
        return None
    if at and tokens[at - 1].value == "." and tokens[at - 1].kind is Kind.SYMBOL:
        return None
    return functions.get(token.value.lower())


def _arguments(text: str, tokens: Sequence[Token], opened: int) -> tuple[list[str], int]:
    """What stands within the parentheses, and the number of the closing one."""
    found: list[str] = []
    depth, start = 0, tokens[opened].end
    for at in range(opened, len(tokens)):
        token = tokens[at]
        if token.kind is not Kind.SYMBOL:
            continue
        if token.value in "([{":
            depth += 1
        elif token.value in ")]}":
            depth -= 1
            if not depth:
                last = text[start : token.start]
                return ([*found, last] if found or last.strip() else []), at
        elif token.value == "," and depth == 1:
            found.append(text[start : token.start])
            start = token.end
    raise SqlError("a parenthesis is never closed")


def _call(function: CreateFunction, arguments: Sequence[str]) -> str:
    values = {
        name.lower(): f"CAST(({_in_one_line(value)}) AS {kind})"
        for (name, kind), value in zip(function.parameters, arguments, strict=True)
    }
    if function.language == "python":
        return f"CAST({called_name(function)}({', '.join(values.values())}) AS {function.returns})"
    tokens, parts = _tokens(function.body), []
    for at, token in enumerate(tokens[:-1]):
        is_name = token.kind in (Kind.WORD, Kind.QUOTED) and not (
            tokens[at + 1].value == "(" and tokens[at + 1].kind is Kind.SYMBOL
        )
        parts.append(values.get(token.value.lower(), "") if is_name else "")
        parts[-1] = parts[-1] or function.body[token.start : token.end]
    return f"CAST(({' '.join(parts)}) AS {function.returns})"


def _in_one_line(text: str) -> str:
    """Without comments. Line breaks within strings stay."""
    return " ".join(text[token.start : token.end] for token in _tokens(text)[:-1])


def _tokens(text: str) -> list[Token]:
    found = list(statements_of(text))
    if len(found) != 1:
        raise SqlError("expected one statement")
    return found[0]


def _words(error: SqlError) -> str:
    """Without the place."""
    return str(error).partition(": ")[2]
