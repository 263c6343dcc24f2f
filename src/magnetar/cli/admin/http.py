"""The admin API as the commands use it: the typed client, as whoever the command's options say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import click

from magnetar.admin.client.client import AdminClient
from magnetar.admin.client.http import Answer, Http
from magnetar.broker.naming import TopicName
from magnetar.cli.credentials import Credentials, credential_options
from magnetar.cli.errors import CommandError

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:8080"


def admin_url_option(function: F) -> F:
    """`--admin-url`, given to the command as `admin_url`, and the options that say who the command is."""
    return click.option(
        "--admin-url",
        default=DEFAULT_URL,
        envvar="MAGNETAR_ADMIN_URL",
        show_default=True,
        show_envvar=True,
        help="Address of the admin API, or several: http://HOST:PORT,HOST:PORT.",
    )(credential_options(function))


def connected(url: str) -> AdminClient:
    """The client of the command that runs. Raises CommandError for what is not a valid URL."""
    credentials = Credentials.current()
    try:
        return AdminClient(
            url,
            token=credentials.token if credentials.kind == "token" else None,
            basic=credentials.user() if credentials.kind == "basic" else None,
            tls=credentials.tls() if url.startswith("https:") else None,
        )
    except ValueError as error:
        raise CommandError(f"{url} is not a valid URL; write it as http://HOST:PORT") from error


def request(method: str, url: str, path: str, body: object = None) -> Answer:
    """Send `body` as JSON to `path` below /admin/v2. Raises the client's errors, CommandError for what is not a valid URL."""
    credentials = Credentials.current()
    try:
        http = Http(url, credentials.headers, credentials.tls() if url.startswith("https:") else None)
    except ValueError as error:
        raise CommandError(f"{url} is not a valid URL; write it as http://HOST:PORT") from error
    try:
        return http.request(method, f"/admin/v2/{path}", body)
    finally:
        http.close()


def topic_path(topic: str) -> str:
    """`persistent/tenant/namespace/topic` of a short or complete name, quoted. Raises InvalidTopicNameError."""
    name = TopicName.parse(topic)
    return "/".join((name.domain, name.tenant, name.namespace, quote(name.local_name, safe="")))


def pairs(texts: tuple[str, ...]) -> Mapping[str, str]:
    """Properties given as `name=value`, several in one word separated by commas. Raises CommandError."""
    found: dict[str, str] = {}
    for text in (part for word in texts for part in word.split(",")):
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise CommandError(f"{text!r}: write a property as name=value")
        found[name] = value
    return found


def words(text: str | None) -> list[str]:
    """A list given as one word with commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]
