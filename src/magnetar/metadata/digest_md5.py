"""SASL DIGEST-MD5 (RFC 2831) as ZooKeeper's servers and clients speak it: both know a secret, and neither sends it. Pure.

    client: nothing    server: its nonce    client: its nonce, a digest of both and the secret    server: the same the other way round

The digest is old and the secret therefore has to be long and random: then there is nothing to guess. It shows both sides that the
other one knows the secret when the connection begins; what passes afterwards is not protected.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final, NamedTuple

from magnetar.base.errors import ConfigError, MetadataError

SECRET_CHARS_MIN: Final = 16
"""A shorter secret is refused: who sees one digest could try secrets at leisure."""

_REALM: Final = "zk-sasl-md5"
_URI: Final = f"zookeeper/{_REALM}"
_FIRST_USE: Final = "00000001"
_PAIR: Final = re.compile(r'\s*([a-z-]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^",]*)\s*(?:,|$)')
_WORD: Final = re.compile(r"[!#-\[\]-~]+")
"""Printable ASCII without space, quote and backslash: it is the same bytes for everybody, also in the configuration of Java."""


class MetadataAuthenticationError(MetadataError):
    """The metadata server and its client do not know the same secret; give both the same `metadataSecret`."""

    slug = "metadata-authentication"
    retriable = False


class Credentials(NamedTuple):
    """Who a client of the metadata store is. `secret` is text that only it and the server know."""

    user: str
    secret: str

    def __repr__(self) -> str:
        return f"Credentials({self.user!r}, ***)"


def credentials(user: str, secret: bytes) -> Credentials:
    """Raises ConfigError, which never shows the secret."""
    text = secret.decode("ascii", errors="replace").strip()
    if len(text) < SECRET_CHARS_MIN or not _WORD.fullmatch(text):
        raise ConfigError(
            f"metadataSecret needs at least {SECRET_CHARS_MIN} characters of printable ASCII without spaces, quotes and "
            "backslashes; make one with `openssl rand -base64 32`"
        )
    if not _WORD.fullmatch(user):
        raise ConfigError(f"metadataUser {user!r} is not a word of printable ASCII without quotes and backslashes")
    return Credentials(user, text)


class ServerDigest:
    """The server's side of one authentication: `challenge()`, then `verify(response)` once."""

    __slots__ = ("_credentials", "_nonce")

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._nonce = secrets.token_urlsafe(32)

    def challenge(self) -> bytes:
        return f'realm="{_REALM}",nonce="{self._nonce}",qop="auth",charset=utf-8,algorithm=md5-sess'.encode()

    def verify(self, response: bytes) -> bytes:
        """What shows the client that this server knows the secret, too. Raises MetadataAuthenticationError."""
        said = _parse(response)
        user, nonce = self._credentials.user, self._nonce
        expected = {"username": user, "realm": _REALM, "nonce": nonce, "nc": _FIRST_USE, "digest-uri": _URI}
        for key, value in expected.items():
            if not hmac.compare_digest(said.get(key, "").encode(), value.encode()):
                raise MetadataAuthenticationError(f"the client's {key} is wrong or missing")
        authzid = said.get("authzid", user)
        if said.get("qop", "auth") != "auth" or authzid != user or not said.get("cnonce"):
            raise MetadataAuthenticationError(
                "the client asks for another protection or for another user, or sends no nonce"
            )
        proof = _Proof(self._credentials, nonce, said["cnonce"], authzid if "authzid" in said else None)
        if not hmac.compare_digest(proof.digest("AUTHENTICATE").encode(), said.get("response", "").encode()):
            raise MetadataAuthenticationError("the client does not know the secret")
        return f"rspauth={proof.digest('')}".encode()


class ClientDigest:
    """The client's side: `respond(challenge)`, then `check(rspauth)`."""

    __slots__ = ("_credentials", "_proof")

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._proof: _Proof | None = None

    def respond(self, challenge: bytes) -> bytes:
        """Raises MetadataAuthenticationError."""
        said = _parse(challenge)
        nonce, realm = said.get("nonce", ""), said.get("realm", _REALM)
        if not nonce or said.get("algorithm") != "md5-sess" or realm != _REALM or '"' in nonce or "\\" in nonce:
            raise MetadataAuthenticationError("the server does not speak ZooKeeper's DIGEST-MD5")
        if "auth" not in said.get("qop", "auth").split(","):
            raise MetadataAuthenticationError("the server asks for a protection that this client does not have")
        cnonce = secrets.token_urlsafe(32)
        self._proof = _Proof(self._credentials, nonce, cnonce, None)
        return (
            f'charset=utf-8,username="{self._credentials.user}",realm="{_REALM}",nonce="{nonce}",nc={_FIRST_USE},'
            f'cnonce="{cnonce}",digest-uri="{_URI}",response={self._proof.digest("AUTHENTICATE")},qop=auth'
        ).encode()

    def check(self, rspauth: bytes) -> None:
        """Raises MetadataAuthenticationError for a server that does not know the secret."""
        said = _parse(rspauth).get("rspauth", "")
        if self._proof is None or not hmac.compare_digest(said.encode(), self._proof.digest("").encode()):
            raise MetadataAuthenticationError("the server does not know the secret")


class _Proof:
    __slots__ = ("_cnonce", "_key", "_nonce")

    def __init__(self, credentials: Credentials, nonce: str, cnonce: str, authzid: str | None) -> None:
        self._nonce = nonce
        self._cnonce = cnonce
        known = _md5(f"{credentials.user}:{_REALM}:{credentials.secret}".encode()).digest()
        tail = f":{nonce}:{cnonce}" + (f":{authzid}" if authzid is not None else "")
        self._key = _md5(known + tail.encode()).hexdigest()

    def digest(self, method: str) -> str:
        asked = _md5(f"{method}:{_URI}".encode()).hexdigest()
        text = f"{self._key}:{self._nonce}:{_FIRST_USE}:{self._cnonce}:auth:{asked}"
        return _md5(text.encode()).hexdigest()


def _md5(data: bytes) -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=True)


def _parse(message: bytes) -> dict[str, str]:
    """`key=value,key="value"`. Raises MetadataAuthenticationError; a key that stands there twice is one, too."""
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise MetadataAuthenticationError("the message is not text") from None
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _PAIR.match(text, position)
        if match is None or match[1] in found:
            raise MetadataAuthenticationError("the message is not a list of key=value")
        value = match[2]
        found[match[1]] = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value.strip()
        position = match.end()
    return found
