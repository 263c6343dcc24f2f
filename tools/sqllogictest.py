"""Files of sqllogictest as RisingWave writes them: records, includes, and whether an answer is the one that is written down.

The rules are those of the runner of crates.io (sqllogictest-bin with the engine `postgres`): values as text, NULL as `NULL`, an empty
text as `(empty)`, white space between values of any length, errors by regular expression. Other than there a file goes on behind a
record that failed, so that statements can be counted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LABELS: Final = frozenset({"postgres", "serial"})
"""What `onlyif` and `skipif` are held against: the engine, and that files run one after the other."""

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m)")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0}
_SORTS: Final = ("nosort", "rowsort", "valuesort")
_ERROR_ENDS: Final = 2
"""So many empty lines end the text of an error that is written below `----`."""


class FormatError(Exception):
    """A file says something that this reader does not know."""


@dataclass(frozen=True, slots=True)
class Record:
    """`kind`: statement, query, system, sleep, halt, substitution or let. `error`: a regular expression that an error has to match, the
    whole text when it is `exact`, None when there must be none. `rows`: the lines that are expected, None when any will do. `times`,
    `pause_s`: of `retry`."""

    where: str
    kind: str
    sql: str = ""
    error: str | None = None
    exact: bool = False
    rows: tuple[str, ...] | None = None
    sort: str = "nosort"
    count: int | None = None
    times: int = 1
    pause_s: float = 0.0
    connection: str = ""
    names: tuple[str, ...] = ()


def read(file: Path, root: Path) -> list[Record]:
    """All records of a file and of what it includes. Raises FormatError."""
    return [
        record for part in parts(file, root) for record in ([part] if isinstance(part, Record) else read(part, root))
    ]


def parts(file: Path, root: Path) -> Iterator[Record | Path]:
    """Its records, and the files that it includes, in their order. Raises FormatError."""
    lines = file.read_text(encoding="utf-8").splitlines()
    name = str(file.relative_to(root))
    at, connection, skipped = 0, "", False
    while at < len(lines):
        words = lines[at].split()
        where = f"{name}:{at + 1}"
        at += 1
        if not words or words[0].startswith("#") or words[0] in ("subtest", "hash-threshold"):
            continue
        match words[0]:
            case "include":
                yield from sorted(path for path in file.parent.glob(words[1].removeprefix("./")) if path.is_file())
            case "connection":
                connection = "" if words[1] == "default" else words[1]
            case "skipif" | "onlyif":
                skipped = skipped or (words[1] in LABELS) == (words[0] == "skipif")
            case "halt":
                yield Record(where, "halt")
            case "sleep":
                yield Record(where, "sleep", pause_s=duration_s(words[1]))
            case "control":
                if words[1] == "substitution":
                    yield Record(where, "substitution", sql=words[2])
                elif words[1] != "sortmode" or words[2] != "nosort":
                    raise FormatError(f"{where}: {' '.join(words)} is not known")
            case "statement" | "query" | "system" | "let":
                record, at = _record(where, words, lines, at)
                if not skipped:
                    yield _on(record, connection)
                connection, skipped = "", False
            case _:
                raise FormatError(f"{where}: {words[0]} is not known")


def _on(record: Record, connection: str) -> Record:
    """It holds for one record."""
    return Record(**{name: getattr(record, name) for name in Record.__slots__} | {"connection": connection})


def _record(where: str, words: Sequence[str], lines: Sequence[str], at: int) -> tuple[Record, int]:
    first, at = list(lines[at : at + 1]), at + 1  # also when it is empty, as there
    body, at = _until(lines, at, "----")
    expected: list[str] | None = None
    wants_error = len(words) > 1 and words[1] == "error"
    if at < len(lines) and lines[at] == "----":
        expected, at = _error_text(lines, at + 1) if wants_error else _until(lines, at + 1)
    sql = "\n".join([*first, *body]).strip()
    if words[0] == "let":
        return Record(where, "let", sql, names=tuple(" ".join(words[1:]).replace(",", " ").split())), at
    times, pause_s, words = _retry(where, words)
    found = Record(where, words[0], sql, times=times, pause_s=pause_s)
    if wants_error:
        pattern = "\n".join(expected).strip() if expected else " ".join(words[2:])
        return Record(where, words[0], sql, error=pattern, exact=bool(expected), times=times, pause_s=pause_s), at
    if words[0] == "statement":
        count = int(words[2]) if words[1] == "count" else None
        return Record(where, "statement", sql, count=count, times=times, pause_s=pause_s), at
    if words[0] == "query":
        sort = next((word for word in words[1:] if word in _SORTS), "nosort")
        rows = None if expected is None else tuple(expected)
        return Record(where, "query", sql, rows=rows, sort=sort, times=times, pause_s=pause_s), at
    return found, at


def _until(lines: Sequence[str], at: int, mark: str = "") -> tuple[list[str], int]:
    """The lines up to an empty one, or up to the mark, which is not consumed."""
    found = []
    while at < len(lines) and lines[at].strip() and (not mark or lines[at] != mark):
        found.append(lines[at])
        at += 1
    return found, at


def _error_text(lines: Sequence[str], at: int) -> tuple[list[str], int]:
    found: list[str] = []
    while at < len(lines) and any(line.strip() for line in lines[at : at + _ERROR_ENDS]):
        found.append(lines[at])
        at += 1
    return found, at


def _retry(where: str, words: Sequence[str]) -> tuple[int, float, list[str]]:
    """`retry N backoff 1s` at the end of a record's first line."""
    if len(words) < 5 or words[-4] != "retry" or words[-2] != "backoff":
        return 1, 0.0, list(words)
    try:
        return int(words[-3]) + 1, duration_s(words[-1]), list(words[:-4])
    except ValueError as error:
        raise FormatError(f"{where}: {shlex.join(words[-4:])} is not known") from error


def duration_s(text: str) -> float:
    """Of `1s`, `500ms`. Raises FormatError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise FormatError(f"{text} is not a time")
    return float(found[1]) * _UNITS_S[found[2]]


def plain(text: str) -> str:
    """A line as it is compared."""
    return " ".join(text.split())


def shown(value: bytes | None) -> str:
    """A value of a row, from PostgreSQL's text format."""
    if value is None:
        return "NULL"
    return value.decode(errors="replace") or "(empty)"


def difference(record: Record, rows: Sequence[Sequence[str]]) -> str | None:
    """Why these are not the rows that a record expects, or None."""
    if record.rows is None:
        return None
    mine, theirs = [plain(" ".join(map(plain, row))) for row in rows], [plain(line) for line in record.rows]
    if record.sort == "rowsort":
        mine, theirs = sorted(mine), sorted(theirs)
    elif record.sort == "valuesort":
        mine, theirs = sorted(plain(value) for row in rows for value in row), sorted(theirs)
    if mine == theirs:
        return None
    if len(mine) != len(theirs):
        return f"{len(mine)} rows instead of {len(theirs)}"
    return next(f"{one!r} instead of {other!r}" for one, other in zip(mine, theirs, strict=True) if one != other)


def is_expected(record: Record, error: str) -> bool:
    """Whether an error's text is the one that a record expects."""
    if not record.error:
        return record.error is not None
    if record.exact:
        return plain(error) == plain(record.error)
    try:
        return re.search(record.error, error) is not None
    except re.error:
        return record.error in error
