"""Keys and files that a setting names, in the forms Pulsar takes: `data:;base64,...`, `file:///path`, a path, or bare base64."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from urllib.parse import unquote, urlsplit

from magnetar.base.errors import ConfigError

KEY_BYTES_MAX = 1024 * 1024
"""A larger key, key set or password file is refused."""


def read_key(text: str, setting: str) -> bytes:
    """The bytes behind a setting. Raises ConfigError, which never repeats the value: it may be the secret itself."""
    if text.startswith("data:"):
        header, comma, data = text.partition(",")
        if not comma:
            raise ConfigError(f"{setting}: a data: URL is written data:;base64,...")
        return _base64(data, setting) if header.endswith(";base64") else unquote(data).encode()
    if text.startswith("file:"):
        return read_file(unquote(urlsplit(text).path), setting)
    if _is_file(text):
        return read_file(text, setting)
    return _base64(text, setting)


def read_file(path: str, setting: str) -> bytes:
    """A whole small file. Raises ConfigError."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(KEY_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}") from None
    if len(data) > KEY_BYTES_MAX:
        raise ConfigError(f"{setting}: {path} is larger than {KEY_BYTES_MAX} bytes")
    return data


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _base64(text: str, setting: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{setting}: neither a file that exists nor base64; write file:///path") from None
