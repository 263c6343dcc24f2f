"""SCRAM-SHA-256 as PostgreSQL speaks it (RFC 5802, 7677), the server's side, without channel binding; and its secrets. A decision core.

A secret is what PostgreSQL keeps in `pg_authid`: `SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY`. It proves a password and cannot be
used in its place.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import stringprep
import unicodedata
from dataclasses import dataclass
from typing import Final

from magnetar.pipeline.serving.wire.messages import ProtocolError

MECHANISM: Final = "SCRAM-SHA-256"

ITERATIONS: Final = 4096
"""PostgreSQL's, and the least that RFC 7677 allows; a client computes them at each connect."""

ITERATIONS_MAX: Final = 1_000_000
"""A secret with more is refused: clients would compute for seconds."""

SALT_BYTES: Final = 16

_SECRET: Final = re.compile(
    r"SCRAM-SHA-256\$([1-9][0-9]{0,6}):([A-Za-z0-9+/=]{4,128})\$([A-Za-z0-9+/=]{44}):([A-Za-z0-9+/=]{44})"
)
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_CLIENT_FIRST: Final = re.compile(rf"([ny],(?:a=[^,]*)?,)(n=[^,]*,r=({_NONCE})(?:,.*)?)")
_CLIENT_FINAL: Final = re.compile(rf"(c=([A-Za-z0-9+/=]+),r=({_NONCE})(?:,.*)?),p=([A-Za-z0-9+/=]+)")


@dataclass(frozen=True, slots=True)
class Secret:
    """`known` False: of a role that is not there, so that it is refused only at the end, as a wrong password is."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    known: bool = True

    def __str__(self) -> str:
        stored, server = _base64(self.stored_key), _base64(self.server_key)
        return f"{MECHANISM}${self.iterations}:{_base64(self.salt)}${stored}:{server}"


def make_secret(password: str, salt: bytes, iterations: int = ITERATIONS) -> Secret:
    """Of a password, by its client's rules (SASLprep where that is possible)."""
    salted = hashlib.pbkdf2_hmac("sha256", _prepared(password).encode(), salt, iterations)
    stored = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
    return Secret(iterations, salt, stored, _hmac(salted, b"Server Key"))


def read_secret(text: str) -> Secret:
    """Raises ValueError."""
    found = _SECRET.fullmatch(text)
    if found is None or int(found[1]) > ITERATIONS_MAX:
        raise ValueError("it is not SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY")
    salt, stored, server = (base64.b64decode(found[part], validate=True) for part in (2, 3, 4))
    if len(stored) != 32 or len(server) != 32:
        raise ValueError("its keys are not 32 bytes long")
    return Secret(int(found[1]), salt, stored, server)


def mock_secret(user: str, key: bytes, iterations: int = ITERATIONS) -> Secret:
    """For a role that is not there: the same salt whenever it is asked for, as for one that is. `key`: a secret of the process."""
    salt = _hmac(key, b"salt" + user.encode(errors="replace"))[:SALT_BYTES]
    return Secret(iterations, salt, _hmac(key, b"stored"), _hmac(key, b"server"), known=False)


class Exchange:
    """One attempt. `nonce`: of the server, printable without commas."""

    def __init__(self, secret: Secret, nonce: str) -> None:
        self._secret = secret
        self._nonce = nonce
        self._header = ""
        self._said = ""

    def first(self, message: bytes) -> bytes:
        """The answer to the client's first message. Raises ProtocolError."""
        text = _ascii(message)
        if text.startswith("p="):
            raise ProtocolError("channel binding is not offered by this server")
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None or ",m=" in text:
            raise ProtocolError("malformed SCRAM message")
        self._header, bare, self._nonce = found[1], found[2], found[3] + self._nonce
        answer = f"r={self._nonce},s={_base64(self._secret.salt)},i={self._secret.iterations}"
        self._said = f"{bare},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes | None:
        """The answer to its second; None where the password is wrong or the role is not there. Raises ProtocolError."""
        found = _CLIENT_FINAL.fullmatch(_ascii(message))
        if found is None or found[3] != self._nonce or found[2] != _base64(self._header.encode()):
            raise ProtocolError("malformed SCRAM message")
        try:
            proof = base64.b64decode(found[4], validate=True)
        except binascii.Error:
            raise ProtocolError("malformed SCRAM message") from None
        said = f"{self._said},{found[1]}".encode()
        signature = _hmac(self._secret.stored_key, said)
        if len(proof) != len(signature):
            raise ProtocolError("malformed SCRAM message")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        right = hmac.compare_digest(hashlib.sha256(client_key).digest(), self._secret.stored_key)
        if not right or not self._secret.known:
            return None
        return b"v=" + base64.b64encode(_hmac(self._secret.server_key, said))


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _ascii(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ProtocolError("malformed SCRAM message") from None


def _prepared(password: str) -> str:
    """SASLprep (RFC 4013); what it forbids is taken as it is, as PostgreSQL and its clients do."""
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in password if not stringprep.in_table_b1(char)
    )
    found = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    forbidden = (
        stringprep.in_table_a1, stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3, stringprep.in_table_c4,
        stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8, stringprep.in_table_c9,
    )  # fmt: skip
    right_to_left = [stringprep.in_table_d1(char) for char in found]
    mixed = any(right_to_left) and (
        any(map(stringprep.in_table_d2, found)) or not (right_to_left[0] and right_to_left[-1])
    )
    if not found or mixed or any(table(char) for table in forbidden for char in found):
        return password
    return found
