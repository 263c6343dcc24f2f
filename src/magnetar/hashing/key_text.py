"""Values of key columns as people write them."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from magnetar.hashing.errors import KeyEncodingError
from magnetar.hashing.key_types import KeyType

NULL_TEXT: Final = "NULL"


def value_of(text: str, column: KeyType) -> Any:
    """NULL is a NULL. Dates and times in ISO form, bytea in hexadecimal, intervals in seconds, nested types as JSON. KeyEncodingError."""
    if text == NULL_TEXT:
        return None
    name = column.name
    try:
        if name in ("tinyint", "smallint", "integer", "bigint", "int256", "serial"):
            return int(text)
        if name in ("real", "double"):
            return float(text)
        if name == "boolean":
            return {"true": True, "false": False}[text.lower()]
        if name == "decimal":
            return Decimal(text)
        if name == "bytea":
            return bytes.fromhex(text)
        if name == "interval":
            return timedelta(seconds=float(text))
        if name in ("array", "struct", "map", "vector"):
            return json.loads(text)
        parsers: dict[str, Any] = {
            "date": date.fromisoformat,
            "time": time.fromisoformat,
            "timestamp": datetime.fromisoformat,
            "timestamptz": datetime.fromisoformat,
        }
        return parsers[name](text) if name in parsers else text
    except (ValueError, KeyError, InvalidOperation) as bad:
        raise KeyEncodingError(f"{text!r} is not a valid {column}") from bad
