"""Tokens, good and forged, put together by hand: what a library refuses to make must be tried as well."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

SECRET = b"0123456789abcdef0123456789abcdef"
AUDIENCE = "the-cluster"


def part(value: object) -> bytes:
    """Base64url without padding of bytes, or of a value's JSON."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def token(
    role: object,
    *,
    secret: bytes = SECRET,
    lifetime_s: float | None = 3600,
    header: dict[str, Any] | None = None,
    **claims: Any,
) -> str:
    """Signed by HMAC-SHA256 whatever the header says. `lifetime_s` None: for ever."""
    payload: dict[str, Any] = {"sub": role, "aud": AUDIENCE} | claims
    if lifetime_s is not None:
        payload.setdefault("exp", time.time() + lifetime_s)
    signed = part({"alg": "HS256"} | (header or {})) + b"." + part(payload)
    return (signed + b"." + part(hmac.new(secret, signed, hashlib.sha256).digest())).decode()
