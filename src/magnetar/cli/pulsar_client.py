"""The official client as the commands use it: quiet, and with its exceptions turned into one clear line."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from magnetar.cli.credentials import Credentials, credential_options
from magnetar.cli.errors import CommandError, ServerUnreachableError

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "pulsar://127.0.0.1:6650"
PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
PROBE_TIMEOUT_S = 5.0


def url_option(function: F) -> F:
    """`--url`, given to the command as `url`, and the options that say who the command is."""
    return click.option(
        "--url", default=DEFAULT_URL, envvar="MAGNETAR_URL", show_default=True, show_envvar=True, help="Server."
    )(credential_options(function))


def verbose_option(function: F) -> F:
    """`--verbose`, given to the command as `verbose`."""
    return click.option("-v", "--verbose", is_flag=True, help="Show the client library's log.")(function)


@contextmanager
def connected(url: str, *, verbose: bool = False, io_threads: int = 1) -> Iterator[Any]:
    """A `pulsar.Client` that is closed at the end, also after Ctrl-C. Raises CommandError for what the client raises."""
    import pulsar

    probe(url)
    # the library's console logger writes to stdout, between the messages
    logger = pulsar.FileLogger(
        *((pulsar.LoggerLevel.Info, "/dev/stderr") if verbose else (pulsar.LoggerLevel.Error, "/dev/null"))
    )
    credentials = Credentials.current()
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
    except (pulsar.ConnectError, pulsar.Timeout, pulsar.NotConnected) as error:
        raise ServerUnreachableError(f"{url} does not answer ({plain(error)}); is a server running there?") from error
    except pulsar.PulsarException as error:
        raise CommandError(f"{url}: {plain(error)}") from error
    finally:
        try:
            client.close()
        except pulsar.PulsarException:
            pass  # what could not be closed is gone with the process


def probe(url: str) -> None:
    """Fail at once where nobody listens: the client library keeps trying for its whole operation timeout."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or "," in parts.netloc:
        return
    try:
        socket.create_connection((parts.hostname or "", parts.port or PORTS[parts.scheme]), PROBE_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise ServerUnreachableError(f"{url} does not answer ({error}); is a server running there?") from error


def plain(error: Exception) -> str:
    """The client's text without its prefix."""
    return str(error).removeprefix("Pulsar error: ") or type(error).__name__
