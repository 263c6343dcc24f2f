"""Tokens with line and column, one pass, linear time; what is unterminated or nested too deeply is refused here.

The tokens serve magnetar's own statements (CREATE SOURCE and so on). A query inside a statement keeps its text and goes to sqlglot;
the bounds below are what keeps its recursive parser safe.
"""

from __future__ import annotations

import enum
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from magnetar.pipeline.errors import SqlError

MAX_TEXT_CHARACTERS = 1 << 20
"""A longer text is refused before it is read."""
MAX_STATEMENT_TOKENS = 10_000
"""A longer statement is refused."""
MAX_NESTING = 24
"""Open parentheses, brackets, CASEs and directly repeated prefix operators; sqlglot's parser takes about 25 frames for each."""


class Kind(enum.Enum):
    WORD = "word"
    QUOTED = "quoted name"
    STRING = "string"
    NUMBER = "number"
    SYMBOL = "symbol"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """`value` is the text without quotes and escapes; `start` and `end` are offsets into the text."""

    kind: Kind
    value: str
    start: int
    end: int

    @property
    def keyword(self) -> str:
        """The word in capitals; empty for everything that cannot be a keyword."""
        return self.value.upper() if self.kind is Kind.WORD else ""

    def described(self) -> str:
        """For errors. A string's content may be a password, so it is never shown."""
        if self.kind is Kind.END:
            return "the end of the statement"
        return "a string" if self.kind is Kind.STRING else f"{self.value[:60]!r}"


class Position:
    """Offsets of one text as (line, column), both from 1."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def of(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


_TOKEN = re.compile(
    r"""
      (?P<space>\s+|--[^\n]*)
    | (?P<comment>/\*)
    | (?P<escape>[eE]'(?:[^'\\]|''|\\.)*+')
    | (?P<string>'(?:[^']|'')*+')
    | (?P<quoted>"(?:[^"]|"")*+")
    | (?P<dollar>\$(?:[A-Za-z_]\w*)?\$)
    | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+)
    | (?P<word>[^\W\d]\w*)
    | (?P<symbol>->>|::|->|<=|>=|<>|!=|\|\||[^\s])
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_OPENS = {"(": ")", "[": "]", "{": "}"}
_PREFIX_WORDS = frozenset({"NOT"})
_PREFIX_SYMBOLS = frozenset("-+~")


def statements_of(text: str) -> Iterator[list[Token]]:
    """The tokens of each statement, without the semicolon, ended by an END token. Empty statements are left out."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise SqlError(f"the text has {len(text)} characters, at most {MAX_TEXT_CHARACTERS} are read; split the file")
    position = Position(text)
    tokens: list[Token] = []
    nesting = _Nesting(position)
    for token in _tokens(text, position):
        if token.kind is Kind.SYMBOL and token.value == ";":
            nesting.finish()
            if tokens:
                yield [*tokens, Token(Kind.END, "", token.start, token.start)]
            tokens, nesting = [], _Nesting(position)
            continue
        nesting.take(token)
        tokens.append(token)
        if len(tokens) > MAX_STATEMENT_TOKENS:
            line, column = position.of(tokens[0].start)
            raise SqlError(
                f"this statement has more than {MAX_STATEMENT_TOKENS} words and symbols; end it with ';' or split it into views",
                line,
                column,
            )
    nesting.finish()
    if tokens:
        yield [*tokens, Token(Kind.END, "", tokens[-1].end, tokens[-1].end)]


class _Nesting:
    __slots__ = ("_cases", "_open", "_position", "_prefixes")

    def __init__(self, position: Position) -> None:
        self._position = position
        self._open: list[Token] = []
        self._prefixes = 0
        self._cases = 0

    def take(self, token: Token) -> None:
        value = token.value
        if token.keyword in _PREFIX_WORDS or (token.kind is Kind.SYMBOL and value in _PREFIX_SYMBOLS):
            self._prefixes += 1
        else:
            self._prefixes = 0
        if token.kind is Kind.SYMBOL:
            if value in _OPENS:
                self._open.append(token)
            elif value in ")]}":
                self._close(token)
        elif token.keyword == "CASE":
            self._cases += 1
        elif token.keyword == "END" and self._cases:
            self._cases -= 1
        if len(self._open) + self._cases + self._prefixes > MAX_NESTING:
            raise SqlError(
                f"more than {MAX_NESTING} levels of nesting; give the inner part a name with WITH or a view of its own",
                *self._position.of(token.start),
            )

    def _close(self, token: Token) -> None:
        if not self._open or _OPENS[self._open[-1].value] != token.value:
            raise SqlError(
                f"{token.value!r} closes nothing; remove it or open it before", *self._position.of(token.start)
            )
        self._open.pop()

    def finish(self) -> None:
        if self._open:
            opened = self._open[-1]
            where = self._position.of(opened.start)
            raise SqlError(f"{opened.value!r} is never closed; add {_OPENS[opened.value]!r}", *where)


def _tokens(text: str, position: Position) -> Iterator[Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        group = match.lastgroup if match else "space"
        end = match.end() if match else at + 1
        if group == "comment":
            at = _comment_end(text, at, position)
            continue
        if group == "dollar":
            tag = text[at:end]
            close = text.find(tag, end)
            if close < 0:
                raise SqlError(f"the string opened by {tag} never ends; close it with {tag}", *position.of(at))
            yield Token(Kind.STRING, text[end:close], at, close + len(tag))
            at = close + len(tag)
            continue
        if group != "space":
            yield _token(str(group), text, at, end, position)
        at = end


def _token(group: str, text: str, at: int, end: int, position: Position) -> Token:
    raw = text[at:end]
    if group == "string":
        return Token(Kind.STRING, raw[1:-1].replace("''", "'"), at, end)
    if group == "escape":
        return Token(Kind.STRING, _unescape(raw[2:-1]), at, end)
    if group == "quoted":
        return Token(Kind.QUOTED, raw[1:-1].replace('""', '"'), at, end)
    if group == "symbol":
        if raw in ("'", '"'):
            what = "string" if raw == "'" else "quoted name"
            raise SqlError(f"the {what} that starts here never ends; close it with {raw}", *position.of(at))
        return Token(Kind.SYMBOL, raw, at, end)
    return Token(Kind.WORD if group == "word" else Kind.NUMBER, raw, at, end)


def _unescape(body: str) -> str:
    simple = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
    return re.sub(r"\\(.)|''", lambda m: simple.get(m[1], m[1]) if m[1] else "'", body, flags=re.DOTALL)


def _comment_end(text: str, at: int, position: Position) -> int:
    """Block comments nest, as in PostgreSQL."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, at):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    raise SqlError("the comment that starts here never ends; close it with */", *position.of(at))
