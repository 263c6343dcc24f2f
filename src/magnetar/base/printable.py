"""Text of strangers on its way to a log or a terminal: what would begin a line or command the terminal is shown as an escape.

Names, properties and payloads may hold any character. A line break in a log forges the next line; an escape sequence on a terminal moves
the cursor, changes its title or, on some, types commands; a mark of direction reorders what is read.
"""

from __future__ import annotations

import re

_ESCAPED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPED_BUT_BREAKS = re.compile(_ESCAPED.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def as_text(value: bytes | str) -> str:
    """A protobuf string. Of what is not UTF-8 the bytes are shown as `\\xff`."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def one_line(text: str) -> str:
    """`text` without anything that ends a line or controls a terminal: `\\n`, `\\x1b`, `\\u202e` in its place."""
    return _ESCAPED.sub(_escape, text)


def lines(text: str) -> str:
    """The same, but line feeds and tabs stay."""
    return _ESCAPED_BUT_BREAKS.sub(_escape, text)


def json_line(document: str) -> str:
    """A JSON document, which has escapes of its own for what its encoder leaves as it is: the same document, without such characters."""
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
