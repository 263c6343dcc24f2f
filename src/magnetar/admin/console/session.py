"""Who reads the page: a credential in a cookie, and the proof that a form was sent by one of our own pages.

Nothing is kept at the server: the cookie holds what a client of the admin API sends as `Authorization`, and every page hands it to the
same check. It is HttpOnly (no script reads it), SameSite=Strict (no other site's page sends it), ends with the browser's session, and is
valid for no other path. A form's token is made of both cookies, so whoever cannot read them cannot make it, and every broker of a
cluster can check it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

CREDENTIAL_COOKIE: Final = "magnetar_credential"
BROWSER_COOKIE: Final = "magnetar_browser"
FORM_TOKEN: Final = "form_token"

CREDENTIAL_CHARS_MAX: Final = 3_500
"""Longer ones do not fit into a cookie (RFC 6265 asks browsers for 4096 bytes); the login refuses them."""

BROWSER_BYTES: Final = 24


class Session:
    """Of one request."""

    def __init__(self, request: Request) -> None:
        self._secure = request.url.scheme == "https"
        self.authorization = request.headers.get("authorization", "") or _decoded(
            request.cookies.get(CREDENTIAL_COOKIE, "")
        )
        """As in the header of that name; empty without a credential."""
        known = request.cookies.get(BROWSER_COOKIE, "")
        self._is_new = len(known) != BROWSER_BYTES * 2
        self._browser = secrets.token_hex(BROWSER_BYTES) if self._is_new else known

    @property
    def form_token(self) -> str:
        key = f"{self._browser}\n{self.authorization}".encode()
        return hmac.new(key, b"magnetar console form", hashlib.sha256).hexdigest()

    def is_own_form(self, token: str) -> bool:
        """True if the form with this token came from a page that this browser was given."""
        return not self._is_new and hmac.compare_digest(self.form_token.encode(), token.encode("utf-8", "replace"))

    def remember_browser(self, response: Response) -> None:
        """Give a new browser its cookie."""
        if self._is_new:
            self._set(response, BROWSER_COOKIE, self._browser)

    def log_in(self, response: Response, authorization: str) -> None:
        self._set(response, CREDENTIAL_COOKIE, base64.urlsafe_b64encode(authorization.encode()).decode())

    def log_out(self, response: Response) -> None:
        response.delete_cookie(CREDENTIAL_COOKIE, "/console", secure=self._secure, httponly=True, samesite="strict")

    def _set(self, response: Response, name: str, value: str) -> None:
        response.set_cookie(name, value, path="/console", secure=self._secure, httponly=True, samesite="strict")


def _decoded(cookie: str) -> str:
    try:
        text = base64.urlsafe_b64decode(cookie.encode("ascii")).decode("ascii")
    except (binascii.Error, ValueError):
        return ""
    return text if text.isprintable() else ""


def of_login(token: str, user: str, password: str) -> str:
    """The `Authorization` of a login form: a token, or a name with a password. Raises ValueError for what cannot be one."""
    token = token.strip()
    if token:
        text = f"Bearer {token}"
    elif user:
        text = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    else:
        raise ValueError("enter a token, or a user name with its password")
    if not text.isascii() or not text.isprintable():
        raise ValueError("a token has only letters, digits, dots, dashes and underscores")
    if len(text) > CREDENTIAL_CHARS_MAX:
        raise ValueError(f"the credential is longer than {CREDENTIAL_CHARS_MAX} characters, which no cookie can hold")
    return text
