"""The official client as the commands use it: quiet, and with its exceptions turned into one clear line."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from magnetar.cli.credentials import Credentials, credential_options
from magnetar.cli.errors import CommandError, ServerUnreachableError
from magnetar.client.blocking_http import unreachable

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "pulsar://127.0.0.1:6650"
PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
PROBE_TIMEOUT_S = 5.0
PROBE_ANSWER_S = 1.0

_PING: Final = b"\x00\x00\x00\x10\x00\x00\x00\x0c" + b"\x08\x12\x92\x01\x00" + b"\xc2\x3e\x04\r\n\r\n"
"""PING, with an unknown field that ends what an HTTP server takes for a request: so each kind of server says something."""


def url_option(function: F) -> F:
    """`--url`, given to the command as `url`, and the options that say who the command is."""
    return click.option(
        "--url",
        default=DEFAULT_URL,
        envvar="MAGNETAR_URL",
        show_default=True,
        show_envvar=True,
        help="Service URL, with one address or several: pulsar://HOST:PORT,HOST:PORT.",
    )(credential_options(function))


def verbose_option(function: F) -> F:
    """`--verbose`, given to the command as `verbose`."""
    return click.option("-v", "--verbose", is_flag=True, help="Show the client library's log.")(function)


@contextmanager
def connected(url: str, *, verbose: bool = False, io_threads: int = 1) -> Iterator[Any]:
    """A `pulsar.Client` that is closed at the end, also after Ctrl-C. Raises CommandError for what the client raises."""
    import pulsar

    credentials = Credentials.current()
    probe(url, credentials.tls)
    with ExitStack() as stack:
        log = Path("/dev/stderr")
        if not verbose:
            log = Path(stack.enter_context(TemporaryDirectory(prefix="magnetar-"))) / "log"
        # the library's console logger writes to stdout, between the messages
        level = pulsar.LoggerLevel.Info if verbose else pulsar.LoggerLevel.Warn
        logger = pulsar.FileLogger(level, str(log))
        yield from _connected(url, credentials, logger, None if verbose else log, io_threads)


def _connected(url: str, credentials: Credentials, logger: Any, log: Path | None, io_threads: int) -> Iterator[Any]:
    """`log`: where the library's log is, which has the texts of the server's refusals; its exceptions have the codes only."""
    import pulsar

    try:
        client = pulsar.Client(
            url,
            authentication=credentials.authentication(),
            tls_trust_certs_file_path=credentials.trust_certs or None,
            tls_validate_hostname=True,
            logger=logger,
            io_threads=io_threads,
        )
    except (pulsar.PulsarException, ValueError) as error:
        raise CommandError(f"{url}: {plain(error)}") from error
    try:
        yield client
    except pulsar.Interrupted:
        raise KeyboardInterrupt from None
    except pulsar.Timeout as error:
        raise ServerUnreachableError(
            f"{url} was reached, but the request was not answered in time; its log, and `magnetar brokers healthcheck`, say why"
        ) from error
    except (pulsar.ConnectError, pulsar.NotConnected) as error:
        raise ServerUnreachableError(
            f"{url} was reached, but no connection was made ({plain(error)}); do the addresses that the server advertises (and their "
            "certificates) hold from here?"
        ) from error
    except pulsar.PulsarException as error:
        reason = refusal_in(log)
        raise CommandError(f"{url}: {plain(error)}{f': {reason}' if reason else ''}") from error
    finally:
        try:
            client.close()
        except pulsar.PulsarException:
            pass  # what could not be closed is gone with the process


def refusal_in(log: Path | None) -> str:
    """The text of the last refusal of a server in the library's log; empty where there is none."""
    try:
        text = log.read_text(errors="replace") if log is not None else ""
    except OSError:
        return ""
    found = re.findall(r"Received error response from server: \w+ \((.*)\) -- req_id", text)
    return found[-1] if found else ""


def probe(url: str, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
    """Fail at once, with the reason, where no Pulsar server answers: the client library tries for its whole operation timeout and then says
    that there was no connection. Of several addresses one has to answer. Raises ServerUnreachableError for the last one.
    """
    scheme, _, hosts = url.partition("://")
    if scheme not in PORTS:
        return
    *others, last = [f"{scheme}://{host.strip()}" for host in hosts.split(",")]
    for each in others:
        try:
            return _probe(each, tls)
        except ServerUnreachableError:
            continue
    _probe(last, tls)


def _probe(url: str, tls: Callable[[], ssl.SSLContext] | None) -> None:
    parts = urlsplit(url)
    try:
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    except ValueError as error:
        raise CommandError(f"{url} is not a valid URL; write it as pulsar://HOST:PORT") from error
    try:
        with socket.create_connection((host, port), PROBE_TIMEOUT_S) as connection:
            if parts.scheme == "pulsar+ssl":
                if tls is not None:  # without it whom to trust is said elsewhere: that somebody listens must do
                    tls().wrap_socket(connection, server_hostname=host).close()
                return
            connection.settimeout(PROBE_ANSWER_S)
            connection.sendall(_PING)
            answer = connection.recv(16)
    except OSError as error:
        silent = isinstance(error, TimeoutError | ConnectionResetError) and parts.scheme == "pulsar"
        if silent and _connects(host, port):
            return  # it listens and says nothing: the client library may know better
        raise ServerUnreachableError(unreachable(url, error)) from error
    if answer.startswith(b"HTTP/"):
        raise ServerUnreachableError(
            f"{url} answers, but by HTTP; use the broker's port (brokerServicePort, 6650), not the admin API's"
        )
    if not answer:
        raise ServerUnreachableError(
            f"{url} closed the connection without an answer; does it speak TLS (pulsar+ssl://), or has it too many connections?"
        )
    if answer.startswith(b"\x15\x03"):
        raise ServerUnreachableError(f"{url} answers, but by TLS; use pulsar+ssl://, or the server's port without TLS")


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def plain(error: Exception) -> str:
    """The client's text without its prefix."""
    return str(error).removeprefix("Pulsar error: ") or type(error).__name__
