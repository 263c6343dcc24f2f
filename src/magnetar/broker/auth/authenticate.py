"""Authentication: the principal that a client's credential proves.

A method that is not configured leads to the anonymous role when there is one; a configured method whose credential
is wrong never does.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from magnetar.base.errors import ConfigError
from magnetar.broker.auth.basic import configured_basic
from magnetar.broker.auth.principal import Principal, checked_role
from magnetar.broker.auth.tls import authenticate_certificate
from magnetar.broker.errors import AuthenticationError
from magnetar.broker.settings.security import SecuritySettings, names_of

TOKEN, BASIC, TLS = "token", "basic", "tls"

PROVIDERS = {
    "org.apache.pulsar.broker.authentication.AuthenticationProviderToken": TOKEN,
    "org.apache.pulsar.broker.authentication.AuthenticationProviderBasic": BASIC,
    "org.apache.pulsar.broker.authentication.AuthenticationProviderTls": TLS,
}
"""Pulsar's class names."""

NEED_TO_AUTHENTICATE = "Need to authenticate to perform the request"

_SCHEMES = {"bearer": TOKEN, "basic": BASIC}


class Method(Protocol):
    """Proves a role from the bytes that a client sends."""

    def authenticate(self, credential: bytes) -> Principal: ...


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials that a connection presents.

    `certificate` is the verified one of its TLS session; `original` is the role that a proxy speaks for.
    """

    method: str
    data: bytes = b""
    certificate: Mapping[str, Any] | None = None
    original: str = ""


class Authentication:
    """The configured methods."""

    def __init__(self, config: SecuritySettings, now_ms: Callable[[], int], elsewhere: Collection[str] = ()) -> None:
        """Reads keys and password files. `elsewhere`: methods that the caller sees to. Raises ConfigError."""
        self._config = config
        self._now_ms = now_ms
        self._methods: dict[str, Method] = {}
        self._certificates = False
        for name in names_of(config.authentication_providers):
            name = PROVIDERS.get(name, name.lower())
            if name == TOKEN:
                # imported here: its libraries would cost a server without tokens 40 ms at start and 8 MiB
                from magnetar.broker.auth.token import configured_tokens

                self._methods[TOKEN] = configured_tokens(config, now_ms)
            elif name == BASIC:
                self._methods[BASIC] = configured_basic(config.basic_auth_conf)
            elif name == TLS:
                self._certificates = True
            elif name in elsewhere:
                continue
            else:
                raise ConfigError(f"authenticationProviders: {name} is not one of token, basic, tls")

    def authenticate(self, shown: Credentials) -> Principal:
        """Raises AuthenticationError. It takes one step: the C++ client cannot answer a second challenge during CONNECT."""
        if shown.method == TLS and self._certificates:
            principal = authenticate_certificate(shown.certificate)
            if principal.expires_ms is not None and principal.expires_ms <= self._now_ms():
                raise AuthenticationError("the client certificate has expired")
        elif shown.method in self._methods:
            principal = self._methods[shown.method].authenticate(shown.data)
        elif self._config.anonymous_user_role:
            principal = Principal(self._config.anonymous_user_role, "anonymous")
        else:
            raise AuthenticationError(NEED_TO_AUTHENTICATE)
        return self._behind_proxy(principal, shown.original)

    def of_http(self, authorization: str, certificate: Mapping[str, Any] | None, original: str) -> Principal:
        """The principal of the headers `Authorization` and `X-Original-Principal`, else the certificate. Raises AuthenticationError."""
        scheme, _, value = authorization.strip().partition(" ")
        method, data = _SCHEMES.get(scheme.lower(), ""), value.strip().encode()
        if method == BASIC and method in self._methods:
            try:
                data = base64.b64decode(data, validate=True)
            except (binascii.Error, ValueError):
                raise AuthenticationError("the Basic credential is not valid base64") from None
        if method not in self._methods and certificate is not None:
            method = TLS
        return self.authenticate(Credentials(method, data, certificate, original))

    def _behind_proxy(self, principal: Principal, original: str) -> Principal:
        """A proxy must name whom it speaks for; a superuser may, which leaves it what that role may do: so brokers ask each other for
        somebody. Nobody else may (CVE-2023-30429, CVE-2023-37544)."""
        if principal.role not in self._config.proxy_roles:
            if original and original != principal.role:
                if principal.role in self._config.super_user_roles:
                    return replace(principal, role=checked_role(original), proxy=principal.role)
                raise AuthenticationError("only a role of proxyRoles may act for another one")
            return principal
        if not original or original in self._config.proxy_roles:
            raise AuthenticationError("a proxy must name the role it acts for, which must not be a proxy's")
        return replace(principal, role=checked_role(original), proxy=principal.role)
