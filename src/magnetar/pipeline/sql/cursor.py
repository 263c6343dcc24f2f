"""Reads tokens one after the other; every expectation that fails says where, what was found and what to write."""

from __future__ import annotations

from typing import NoReturn

from magnetar.pipeline.errors import SqlError
from magnetar.pipeline.sql.lexer import Kind, Position, Token

_WORDS = """
    ALL ALTER AND AS ASC BETWEEN BY CASE CAST CREATE CROSS DESC DESCRIBE DISTINCT DROP ELSE EMIT ENCODE END EXCEPT EXISTS EXPLAIN
    FALSE FOR FORMAT FROM FULL GROUP HAVING IF IN INCLUDE INNER INTERSECT INTO IS JOIN LATERAL LEFT LIKE LIMIT NATURAL NOT NULL
    OFFSET ON OR ORDER OUTER PRIMARY RIGHT SELECT SET SHOW TABLE THEN TO TRUE UNION USING WATERMARK WHEN WHERE WITH
"""
RESERVED = frozenset(_WORDS.split())
"""Words that are names only within double quotes."""
MAX_NAME_CHARACTERS = 256


class Cursor:
    """One statement. `text` is the whole file, so that clauses kept as text are cut out of it unchanged."""

    __slots__ = ("_at", "_position", "_tokens", "text")

    def __init__(self, text: str, tokens: list[Token], position: Position) -> None:
        self.text = text
        self._tokens = tokens
        self._position = position
        self._at = 0

    @property
    def token(self) -> Token:
        return self._tokens[self._at]

    def peek(self, ahead: int) -> Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def advance(self) -> Token:
        token = self.token
        if token.kind is not Kind.END:
            self._at += 1
        return token

    @property
    def at_end(self) -> bool:
        return self.token.kind is Kind.END

    def where(self, token: Token | None = None) -> tuple[int, int]:
        return self._position.of((token or self.token).start)

    def fail(self, message: str, token: Token | None = None) -> NoReturn:
        raise SqlError(message, *self.where(token))

    def looks_at(self, *words: str) -> bool:
        return all(self.peek(ahead).keyword == word for ahead, word in enumerate(words))

    def take(self, *words: str) -> bool:
        """Whether these words come next; they are read then."""
        if not self.looks_at(*words):
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str, fix: str = "") -> None:
        for word in words:
            if not self.take(word):
                expected = " ".join(words)
                self.fail(f"expected {expected}, found {self.token.described()}{'; ' + fix if fix else ''}")

    def at_symbol(self, *symbols: str) -> bool:
        return self.token.kind is Kind.SYMBOL and self.token.value in symbols

    def take_symbol(self, symbol: str) -> bool:
        if self.token.kind is Kind.SYMBOL and self.token.value == symbol:
            self._at += 1
            return True
        return False

    def expect_symbol(self, symbol: str, fix: str = "") -> None:
        if not self.take_symbol(symbol):
            self.fail(f"expected {symbol!r}, found {self.token.described()}{'; ' + fix if fix else ''}")

    def name(self, of: str) -> str:
        """A name, quoted or not, in the case it is written in (Spark compares names without case)."""
        token = self.token
        if token.kind is Kind.QUOTED or (token.kind is Kind.WORD and token.keyword not in RESERVED):
            if not token.value or len(token.value) > MAX_NAME_CHARACTERS:
                self.fail(f"a name has 1 to {MAX_NAME_CHARACTERS} characters")
            self._at += 1
            if self.token.kind is Kind.SYMBOL and self.token.value == ".":
                self.fail(f"{of} names have no schema or database; remove what stands before the dot")
            return token.value
        if token.kind is Kind.WORD:
            self.fail(
                f'{token.value!r} is a word of SQL; write it as "{token.value}" to use it as the name of the {of}'
            )
        self.fail(f"expected the name of the {of}, found {token.described()}")

    def owner(self, of: str) -> str:
        """The name before a dot, which is passed over."""
        token, dot = self.token, self.peek(1)
        if token.kind not in (Kind.QUOTED, Kind.WORD) or dot.kind is not Kind.SYMBOL or dot.value != ".":
            self.fail(f"expected the name of a {of}, a dot and a column, found {token.described()}")
        self._at += 2
        return token.value

    def string(self, of: str) -> str:
        if self.token.kind is not Kind.STRING:
            self.fail(f"expected {of} within single quotes, found {self.token.described()}")
        return self.advance().value

    def integer(self, of: str) -> int:
        token = self.token
        if token.kind is not Kind.NUMBER or not token.value.isdigit() or len(token.value) > 9:
            self.fail(f"expected {of}, a whole number, found {token.described()}")
        self._at += 1
        return int(token.value)

    def skip_group(self) -> None:
        """Pass over one token, or over everything within brackets (which the lexer has balanced)."""
        depth = 0
        while not self.at_end:
            token = self.advance()
            if token.kind is Kind.SYMBOL:
                depth += (token.value in "([{") - (token.value in ")]}")
            if depth <= 0:
                return

    def without_comments(self, start: Token, end: Token) -> str:
        """The text from the start of `start` to the start of `end`: tokens joined by one space, comments left out."""
        parts = [token for token in self._tokens if start.start <= token.start < end.start]
        return " ".join(self.text[token.start : token.end] for token in parts)

    def rest(self) -> list[Token]:
        """The tokens not yet read, without END."""
        return self._tokens[self._at : -1]

    @property
    def end(self) -> Token:
        return self._tokens[-1]

    def pass_over(self, token: Token) -> None:
        """Go on behind `token`, one of the tokens not yet read."""
        while self.advance() is not token:
            pass

    def finish(self) -> None:
        if not self.at_end:
            self.fail(f"expected the end of the statement, found {self.token.described()}; is a ';' missing before it?")
