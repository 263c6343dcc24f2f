"""User names and passwords from an htpasswd file: `$apr1$` (what `htpasswd -m` writes) and `{SHA}`.

Plain text, crypt and bcrypt lines are refused at start: the first two protect nothing, the last needs a library of its own.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator

from magnetar.base.errors import ConfigError
from magnetar.broker.auth.key_material import read_key
from magnetar.broker.auth.principal import Principal, checked_role
from magnetar.broker.errors import AuthenticationError

APR1 = "$apr1$"
SHA = "{SHA}"
PASSWORD_BYTES_MAX = 255
"""A longer password is refused: the hash costs a thousand rounds over it."""

_ROUNDS = 1000
_ALPHABET = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ORDER = ((0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5))
_NOBODY = "$apr1$nobody00$......................"


class BasicAuthentication:
    """The method `basic`."""

    def __init__(self, hashes: dict[str, str]) -> None:
        self._hashes = hashes

    def authenticate(self, credential: bytes) -> Principal:
        """`user:password`. Raises AuthenticationError; a missing user takes as long as a wrong password."""
        user, colon, password = credential.partition(b":")
        if not colon or len(password) > PASSWORD_BYTES_MAX:
            raise AuthenticationError("expected user:password")
        try:
            name = checked_role(user.decode())
        except UnicodeDecodeError:
            raise AuthenticationError("the user name is not valid UTF-8") from None
        stored = self._hashes.get(name)
        if not matches(password, stored or _NOBODY) or stored is None:
            raise AuthenticationError("unknown user or wrong password")
        return Principal(name, "basic")


def configured_basic(setting: str) -> BasicAuthentication:
    """The method as the setting basicAuthConf describes it. Raises ConfigError."""
    if not setting:
        raise ConfigError("basic authentication needs basicAuthConf, an htpasswd file")
    try:
        text = read_key(setting, "basicAuthConf").decode()
    except UnicodeDecodeError:
        raise ConfigError("basicAuthConf: not a text file in UTF-8") from None
    return BasicAuthentication(dict(_lines(text)))


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        user, colon, stored = line.partition(":")
        if not user or not colon or not stored.startswith((APR1, SHA)):
            raise ConfigError(f"basicAuthConf:{number}: expected user:$apr1$...; write it by `htpasswd -m`")
        yield user, stored


def matches(password: bytes, stored: str) -> bool:
    """Constant time in the stored hash."""
    if stored.startswith(SHA):
        computed = SHA + base64.b64encode(hashlib.sha1(password, usedforsecurity=False).digest()).decode()
    else:
        computed = apr1(password, stored.split("$")[2])
    return hmac.compare_digest(computed.encode(), stored.encode())


def apr1(password: bytes, salt: str) -> str:
    """Apache's variant of the MD5-based crypt: `$apr1$salt$hash`."""
    salt = salt[:8]
    seasoning = salt.encode()
    inner = _md5(password + seasoning + password)
    outer = password + APR1.encode() + seasoning
    outer += (inner * (len(password) // 16 + 1))[: len(password)]
    length = len(password)
    while length:
        outer += b"\0" if length & 1 else password[:1]
        length >>= 1
    digest = _md5(outer)
    for turn in range(_ROUNDS):
        work = password if turn & 1 else digest
        if turn % 3:
            work += seasoning
        if turn % 7:
            work += password
        work += digest if turn & 1 else password
        digest = _md5(work)
    text = "".join(_in_alphabet(digest[a] << 16 | digest[b] << 8 | digest[c], 4) for a, b, c in _ORDER) + _in_alphabet(
        digest[11], 2
    )
    return f"{APR1}{salt}${text}"


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _in_alphabet(value: int, length: int) -> str:
    return "".join(_ALPHABET[value >> 6 * place & 0x3F] for place in range(length))
