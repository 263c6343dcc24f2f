"""TLS: the listeners' certificate, renewed without a restart, and the role that a client's certificate stands for."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from magnetar.base.errors import ConfigError
from magnetar.broker.auth.principal import Principal, checked_role
from magnetar.broker.config import TlsConfig
from magnetar.broker.errors import AuthenticationError

logger = logging.getLogger(__name__)


class TlsContext:
    """`context` is what a listener is given. Each handshake is answered from the newest files.

    The files are looked at during a handshake, at most every `refresh_check_s`. Files that do not load (a key that does not fit
    its certificate yet) are reported once, and the old ones stay in use.
    """

    def __init__(self, config: TlsConfig, monotonic: Callable[[], float]) -> None:
        """Raises ConfigError when the files cannot be used."""
        self._config = config
        self._monotonic = monotonic
        self._seen = self._look()
        self._current = load(config)
        self._checked_at = monotonic()
        self.context = load(config)
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """OpenSSL calls this in every handshake, with or without a server name."""
        if self._monotonic() - self._checked_at >= self._config.refresh_check_s:
            self._refresh()
        connection.context = self._current

    def _refresh(self) -> None:
        self._checked_at = self._monotonic()
        seen = self._look()
        if seen == self._seen:
            return
        try:
            self._current = load(self._config)
        except ConfigError as error:
            logger.error("the new TLS files are not used: %s", error)
        else:
            logger.info("TLS files reloaded certificate=%s", self._config.certificate_file)
        self._seen = seen

    def _look(self) -> list[tuple[int, int, int]]:
        """Values that change when one of the files is written or replaced."""
        seen = []
        for path in (self._config.certificate_file, self._config.key_file, self._config.trust_certs_file):
            try:
                status = os.stat(path)
                seen.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                seen.append((0, 0, 0))
        return seen


def load(config: TlsConfig) -> ssl.SSLContext:
    """A server's context from the files as they are now. Raises ConfigError naming the setting."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A resumed session would bring back a client certificate that the newest trust file refuses.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    load_certificate(context, config.certificate_file, config.key_file, config.certificate_settings)
    if config.trust_certs_file:
        load_trust(context, config.trust_certs_file, config.trust_setting)
        context.verify_mode = ssl.CERT_REQUIRED if config.require_client_cert else ssl.CERT_OPTIONAL
    return context


def load_certificate(context: ssl.SSLContext, certificate_file: str, key_file: str, settings: str) -> None:
    """Raises ConfigError naming `settings`."""
    try:
        context.load_cert_chain(certificate_file, key_file, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{settings}: {_reason(error)}") from None


def load_trust(context: ssl.SSLContext, file: str, setting: str) -> None:
    """Raises ConfigError naming `setting`."""
    try:
        context.load_verify_locations(file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{setting}: {_reason(error)}") from None


def _no_password() -> str:
    """Called for an encrypted key: without it OpenSSL would ask for a password at the terminal."""
    raise ValueError("the key is encrypted; give one that is not, readable to this user only")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not usable: {error.reason or error}"
    return str(getattr(error, "strerror", None) or error)


def peer_certificate(ssl_object: Any) -> Mapping[str, Any] | None:
    """The verified certificate of the client behind a transport's `ssl_object`; None without one."""
    return (ssl_object.getpeercert() or None) if ssl_object is not None else None


def authenticate_certificate(certificate: Mapping[str, Any] | None) -> Principal:
    """The method `tls`: the subject's common name, until the certificate ends. Raises AuthenticationError."""
    if certificate is None:
        raise AuthenticationError("no client certificate")
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    if len(names) != 1:
        raise AuthenticationError("the client certificate does not have exactly one common name")
    ends_s = ssl.cert_time_to_seconds(certificate["notAfter"])
    return Principal(checked_role(names[0]), "tls", ends_s * 1000)
