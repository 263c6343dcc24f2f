"""The admin API as the commands use it: one request at a time, errors as one line."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import click

from magnetar.broker.naming import TopicName
from magnetar.cli.credentials import Credentials, credential_options
from magnetar.cli.errors import CommandError, ServerRefusedError, ServerUnreachableError

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 30.0


class Answer(NamedTuple):
    """A response with a 2xx status."""

    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's JSON; None for an empty one. Raises CommandError when it is something else."""
        try:
            return json.loads(self.body) if self.body else None
        except ValueError as error:
            raise CommandError("the server's answer is no JSON; does an admin API listen there?") from error


def admin_url_option(function: F) -> F:
    """`--admin-url`, given to the command as `admin_url`, and the options that say who the command is."""
    return click.option(
        "--admin-url",
        default=DEFAULT_URL,
        envvar="MAGNETAR_ADMIN_URL",
        show_default=True,
        show_envvar=True,
        help="Admin API.",
    )(credential_options(function))


def request(method: str, url: str, path: str, body: object = None) -> Answer:
    """Send `body` as JSON to `path` below /admin/v2. Raises ServerRefusedError with the server's reason, ServerUnreachableError."""
    data = None if body is None else json.dumps(body).encode()
    credentials = Credentials.current()
    headers = credentials.headers() | ({"Content-Type": "application/json"} if data is not None else {})
    tls = credentials.tls() if url.startswith("https:") else None
    try:
        message = urllib.request.Request(f"{url.rstrip('/')}/admin/v2/{path}", data, headers, method=method)
        with urllib.request.urlopen(message, timeout=TIMEOUT_S, context=tls) as response:
            return Answer(response.headers, response.read())
    except urllib.error.HTTPError as error:
        raise ServerRefusedError(f"{reason_of(error)} (HTTP {error.code})") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ServerUnreachableError(f"{url} does not answer ({reason}); is a server running there?") from error
    except ValueError as error:
        raise CommandError(f"{url} is no URL; write it as http://HOST:PORT") from error


def reason_of(error: urllib.error.HTTPError) -> str:
    """Pulsar answers `{"reason": "..."}`; other servers answer what they like."""
    try:
        return str(json.loads(error.read())["reason"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)


def topic_path(topic: str) -> str:
    """`persistent/tenant/namespace/topic` of a short or complete name, quoted. Raises InvalidTopicNameError."""
    name = TopicName.parse(topic)
    return "/".join((name.domain, name.tenant, name.namespace, quote(name.local_name, safe="")))
