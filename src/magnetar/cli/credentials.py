"""Who the commands are to a server: `--token`, or Pulsar's `--auth-plugin` and `--auth-params`, and whom they trust over TLS.

The options fill the context of the running command, so that a command which only passes its URL on needs to know nothing of them.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from magnetar.cli.errors import CommandError

F = TypeVar("F", bound=Callable[..., Any])

_KEY = "magnetar.credentials"
_CLASS_PREFIX = "org.apache.pulsar.client.impl.auth.Authentication"
PLUGINS = {
    "": "",
    "token": "token",
    "basic": "basic",
    "tls": "tls",
    f"{_CLASS_PREFIX}Token": "token",
    f"{_CLASS_PREFIX}Basic": "basic",
    f"{_CLASS_PREFIX}Tls": "tls",
}
"""Our short names and Pulsar's class names."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """`kind` is empty, token, basic or tls; `params` are the plugin's, with the names Pulsar gives them."""

    kind: str
    params: dict[str, str]
    trust_certs: str

    @classmethod
    def current(cls) -> Credentials:
        """Of the command that runs. Raises CommandError for options that contradict each other or name no plugin."""
        context = click.get_current_context(silent=True)
        given: dict[str, str] = context.meta.get(_KEY, {}) if context is not None else {}
        plugin, text, token = (given.get(name) or "" for name in ("auth_plugin", "auth_params", "token"))
        if token and plugin:
            raise CommandError("--token and --auth-plugin exclude each other")
        if plugin not in PLUGINS:
            raise CommandError(f"--auth-plugin {plugin}: use token, basic or tls, or Pulsar's class names of these")
        kind = "token" if token else PLUGINS[plugin]
        params = {"token": token} if token else parse_params(kind, text)
        return cls(kind, params, given.get("tls_trust_certs") or "")

    def authentication(self) -> Any:
        """What the official client takes; None without credentials."""
        import pulsar

        if self.kind == "token":
            return pulsar.AuthenticationToken(self.token())
        if self.kind == "basic":
            return pulsar.AuthenticationBasic(*self.user())
        if self.kind == "tls":
            return pulsar.AuthenticationTLS(self._param("tlsCertFile"), self._param("tlsKeyFile"))
        return None

    def user(self) -> tuple[str, str]:
        """User and password."""
        return self._param("userId"), self._param("password")

    def headers(self) -> dict[str, str]:
        """Of an HTTP request."""
        if self.kind == "token":
            return {"Authorization": f"Bearer {self.token()}"}
        if self.kind == "basic":
            pair = ":".join(self.user()).encode()
            return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        return {}

    def tls(self) -> ssl.SSLContext:
        """For https: verifies the server against --tls-trust-certs, else against the system's authorities."""
        try:
            context = ssl.create_default_context(cafile=self.trust_certs or None)
            if self.kind == "tls":
                context.load_cert_chain(self._param("tlsCertFile"), self._param("tlsKeyFile"))
        except (OSError, ssl.SSLError) as error:
            raise CommandError(f"--tls-trust-certs, --auth-params: cannot use the files ({error})") from error
        return context

    def token(self) -> str:
        """Pulsar's forms: the token itself, `token:...`, or `file:///path`."""
        text = self._param("token")
        if text.startswith("file:"):
            path = Path(text.removeprefix("file://").removeprefix("file:"))
            try:
                return path.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise CommandError(f"cannot read the token file {path}: {error}") from error
        return text.removeprefix("token:")

    def _param(self, name: str) -> str:
        if name not in self.params:
            raise CommandError(f"--auth-params: {name} is missing")
        return self.params[name]


def parse_params(kind: str, text: str) -> dict[str, str]:
    """JSON, or `name:value,name:value`. A token's may be the token itself. Raises CommandError, without repeating it."""
    if not text:
        return {}
    if text.startswith("{"):
        try:
            return {str(name): str(value) for name, value in json.loads(text).items()}
        except ValueError:
            raise CommandError("--auth-params is not a JSON object") from None
    if kind == "token":
        return {"token": text}
    pairs = [part.partition(":") for part in text.split(",")]
    if not all(colon for _, colon, _ in pairs):
        raise CommandError("--auth-params is written name:value,name:value or as a JSON object")
    return {name.strip(): value for name, _, value in pairs}


def _remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    assert param.name is not None
    ctx.meta.setdefault(_KEY, {})[param.name] = value


def credential_options(function: F) -> F:
    """The options; the command's function is not given them."""
    for flag, help_text in reversed(_OPTIONS.items()):
        variable = f"MAGNETAR_{flag.removeprefix('--').replace('-', '_').upper()}"
        function = click.option(
            flag, envvar=variable, show_envvar=True, expose_value=False, callback=_remember, help=help_text
        )(function)
    return function


_OPTIONS = {
    "--token": "Token, or file:///PATH of a file that holds it.",
    "--auth-plugin": "Authentication plugin: token, basic, tls, or Pulsar's class name.",
    "--auth-params": 'Parameters of the plugin: token:..., {"userId":"...","password":"..."}, or tlsCertFile:...,tlsKeyFile:...',
    "--tls-trust-certs": "File of the authorities trusted for the server's certificate (PEM).",
}
