"""Who a broker is to another cluster, and over which transport: Pulsar's plugins and parameters, as a cluster's record names them."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.base.errors import ConfigError

_CLASS_PREFIX = "org.apache.pulsar.client.impl.auth.Authentication"
_PLUGINS = {
    "": "",
    "token": "token",
    "basic": "basic",
    "tls": "tls",
    f"{_CLASS_PREFIX}Token": "token",
    f"{_CLASS_PREFIX}Basic": "basic",
    f"{_CLASS_PREFIX}Tls": "tls",
    f"{_CLASS_PREFIX}Disabled": "",
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """`method` is empty, token, basic or tls; `parameters` are the plugin's, by Pulsar's names."""

    method: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, plugin: str, parameters: str) -> Credentials:
        """Raises ConfigError for a plugin that is not known here, or parameters it cannot use. Never repeats a secret."""
        if plugin not in _PLUGINS:
            raise ConfigError(
                f"authentication plugin {plugin}: use token, basic or tls, or Pulsar's class names of these"
            )
        method = _PLUGINS[plugin]
        return cls(method, _parse(method, parameters))

    def data(self) -> bytes:
        """What CONNECT carries, read anew: a token file may have been renewed. Raises ConfigError."""
        if self.method == "token":
            return self._token().encode()
        if self.method == "basic":
            return self._user().encode()
        return b""

    def header(self) -> str:
        """The Authorization header of an HTTP request, empty without one. Raises ConfigError."""
        if self.method == "token":
            return f"Bearer {self._token()}"
        return f"Basic {base64.b64encode(self._user().encode()).decode()}" if self.method == "basic" else ""

    def certificate(self) -> tuple[str, str] | None:
        """Files of certificate and key, for the method `tls`."""
        return (self._get("tlsCertFile"), self._get("tlsKeyFile")) if self.method == "tls" else None

    def _token(self) -> str:
        text = self._get("token")
        if not text.startswith("file:"):
            return text.removeprefix("token:")
        path = Path(text.removeprefix("file://").removeprefix("file:"))
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the token file {path}: {error}") from None

    def _user(self) -> str:
        return f"{self._get('userId')}:{self._get('password')}"

    def _get(self, name: str) -> str:
        if name not in self.parameters:
            raise ConfigError(f"authentication parameters: {name} is missing")
        return self.parameters[name]


def _parse(method: str, text: str) -> dict[str, str]:
    if not text or not method:
        return {}
    if text.startswith("{"):
        try:
            return {str(name): str(value) for name, value in json.loads(text).items()}
        except (ValueError, AttributeError):
            raise ConfigError("authentication parameters are not a JSON object") from None
    if method == "token":
        return {"token": text}
    pairs = [part.partition(":") for part in text.split(",")]
    if not all(colon for _, colon, _ in pairs):
        raise ConfigError("authentication parameters are written name:value,name:value or as a JSON object")
    return {name.strip(): value for name, _, value in pairs}


@dataclass(frozen=True, slots=True)
class TlsTrust:
    """Whom to believe: authorities in `trust_certs_file`, else the system's; anybody when `insecure`."""

    trust_certs_file: str = ""
    insecure: bool = False
    verify_hostname: bool = True

    def context(self, certificate: tuple[str, str] | None) -> ssl.SSLContext:
        """Raises ConfigError when the files cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.trust_certs_file or None)
            if certificate is not None:
                context.load_cert_chain(*certificate)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"TLS files of the cluster's record cannot be used: {error}") from None
        context.check_hostname = self.verify_hostname and not self.insecure
        if self.insecure:
            context.verify_mode = ssl.CERT_NONE
        return context
