"""What a statement is besides a query: transactions, settings, cursors, SHOW and the like. A decision core.

They are read by their first words; whatever is none of them is a query, or refused by `translate`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from magnetar.pipeline.serving.sql.translate import QueryError

_NAME: Final = r'("(?:[^"]|"")+"|[\w.$]+)'


@dataclass(frozen=True)
class Command:
    """`kind`: its first word, or `query`. `name`: of a cursor, setting, savepoint or view, as it is meant. `inner`: a query within.
    `count`: rows of FETCH, None for all. `options`: what else was said."""

    kind: str
    text: str
    name: str = ""
    inner: str = ""
    count: int | None = None
    options: dict[str, str] = field(default_factory=dict)


_PATTERNS: Final = tuple(
    (kind, re.compile(pattern, re.IGNORECASE | re.DOTALL))
    for kind, pattern in (
        ("begin", r"(?:begin|start)\b(?P<rest>.*)"),
        ("commit", r"(?:commit|end)\b(?!\s+prepared).*"),
        ("rollback_to", rf"rollback\s+(?:work\s+|transaction\s+)?to\s+(?:savepoint\s+)?(?P<name>{_NAME})"),
        ("rollback", r"(?:rollback|abort)\b(?!\s+prepared).*"),
        ("savepoint", rf"savepoint\s+(?P<name>{_NAME})"),
        ("release", rf"release\s+(?:savepoint\s+)?(?P<name>{_NAME})"),
        ("set_transaction", r"set\s+(?:session\s+characteristics\s+as\s+|local\s+)?transaction\s+(?P<rest>.*)"),
        ("set_zone", r"set\s+(?:session\s+|local\s+)?time\s+zone\s+(?P<value>.+)"),
        ("set", rf"set\s+(?:session\s+|local\s+)?(?P<name>{_NAME})\s*(?:=|\bto\b)\s*(?P<value>.+)"),
        ("set_names", r"set\s+(?:names|client_encoding)\s+(?P<value>.+)"),
        ("reset", rf"reset\s+(?:session\s+)?(?P<name>{_NAME})"),
        ("show", r"show\s+(?P<rest>.+)"),
        ("describe", rf"(?:describe|desc)\s+(?P<name>{_NAME})"),
        ("explain", r"explain\b\s*(?P<rest>\([^)]*\)|(?:analyze|verbose)\b)?\s*(?P<inner>.+)"),
        (
            "declare",
            rf"declare\s+(?P<name>{_NAME})\s+(?P<rest>[\w\s]*?)\bcursor\b(?:\s+with(?:out)?\s+hold)?\s+for\s+(?P<inner>.+)",
        ),
        (
            "fetch",
            rf"(?:fetch|move)\s+(?:(?P<direction>forward|next|first|backward|prior|last|absolute|relative)\b\s*)?"
            rf"(?:(?P<count>all|-?\d+)\b\s*)?(?:(?:from|in)\s+)?(?P<name>{_NAME})(?:\s+with\s*\(\s*timeout\s*=\s*'?(?P<timeout>[^')]*)'?\s*\))?",
        ),
        ("close", rf"close\s+(?P<name>{_NAME})"),
        ("discard", r"discard\s+\w+"),
        ("deallocate", rf"deallocate\s+(?:prepare\s+)?(?P<name>{_NAME})"),
        ("flush", r"flush"),
        ("write", r"(?:insert|update|delete)\b.+"),
        ("define", r"(?:create|alter|drop|comment\s+on)\b.+"),
        ("listen", r"(?:un)?listen\s+.+"),
        ("copy", r"copy\s*\((?P<inner>.*)\)\s*to\s+stdout\b(?P<rest>.*)"),
        ("copy_table", rf"copy\s+(?P<name>{_NAME})\s+to\s+stdout\b(?P<rest>.*)"),
        (
            "subscribe",
            rf"subscribe\s+(?:to\s+)?(?P<name>{_NAME})(?:\s+with\s*\((?P<rest>[^)]*)\))?(?:\s+since\s+epoch\s+(?P<count>\d+))?",
        ),
    )
)

_TAGS: Final = {
    "start": "START TRANSACTION",
    "move": "MOVE",
    "unlisten": "UNLISTEN",
    "end": "COMMIT",
    "abort": "ROLLBACK",
}


def read(text: str) -> Command:
    """The command that a statement is; `query` for everything else. Raises QueryError for one that goes on where it must not."""
    bare = _without_comments(text)
    for kind, pattern in _PATTERNS:
        found = pattern.fullmatch(bare)
        if found is None:
            continue
        parts = {name: value for name, value in found.groupdict().items() if value is not None}
        count = parts.get("count", "")
        options: dict[str, str] = {
            name: parts[name].strip() for name in ("value", "rest", "direction", "timeout") if name in parts
        }
        number = int(count) if re.fullmatch(r"-?\d{1,18}", count) else None
        if kind == "fetch":
            number = _rows(parts.get("direction", "").lower(), count.lower())
            options["word"] = bare.split(None, 1)[0].upper()
        return Command(kind, bare, unquoted(parts.get("name", "")), parts.get("inner", "").strip(), number, options)
    return Command("query", text)


def _rows(direction: str, count: str) -> int | None:
    """How many rows FETCH asks for, None for all. Raises QueryError for backwards."""
    if direction in ("backward", "prior", "last", "absolute", "relative", "first") or count.startswith("-"):
        raise QueryError("55000", "cursor can only scan forward", "declare it again to read from the beginning")
    if count == "all":
        return None
    return int(count[:18]) if count else 1


def tag_of(command: Command) -> str:
    """What a client is told that was done."""
    first = command.text.split(None, 1)[0].lower().rstrip(";")
    return _TAGS.get(first, first.upper())


def unquoted(name: str) -> str:
    """An identifier as it is meant: lower case unless in quotes. Of a name with a schema, the last part."""
    if name.startswith('"'):
        return name[1:-1].replace('""', '"')
    return name.rpartition(".")[2].lower() if not name.replace(".", "").isdigit() else name


def plain_value(text: str) -> str:
    """The value of SET: without quotes."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return text


def with_options(text: str) -> dict[str, str]:
    """`a = 1, b = 'x'` of WITH (...) by lower-case name. Raises QueryError."""
    found = {}
    for part in text.split(","):
        if not part.strip():
            continue
        name, separator, value = part.partition("=")
        if not separator:
            raise QueryError("42601", f"expected name = value in WITH, not {part.strip()!r}")
        found[name.strip().lower()] = plain_value(value)
    return found


def _without_comments(text: str) -> str:
    """Without comments and white space at the beginning, and without what follows the last word."""
    while True:
        stripped = text.strip()
        comment = re.match(r"--[^\n]*(?:\n|\Z)|/\*.*?\*/", stripped, re.DOTALL)
        if comment is None:
            return stripped.rstrip(";").rstrip()
        text = stripped[comment.end() :]
