"""JSON over the blocking HTTP caller: what the typed client sends and understands, failures as the errors of `errors`."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from magnetar.admin.client.errors import AnswerError, UnreachableError, refused
from magnetar.client.blocking_http import TIMEOUT_S, BlockingHttp
from magnetar.client.errors import BadAnswerError, ServerUnreachableError


class Answer(NamedTuple):
    """A response with a 2xx status. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's JSON; None for an empty one. Raises AnswerError when it is something else."""
        try:
            return json.loads(self.body) if self.body else None
        except ValueError as error:
            raise AnswerError("the server's answer is not JSON; use the URL of an admin API") from error


class Http:
    """Requests that carry JSON, by a BlockingHttp. May be used by several threads."""

    def __init__(
        self,
        url: str,
        headers: Callable[[], Mapping[str, str]],
        tls: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Raises ValueError for what is not a valid http or https URL."""
        self._http = BlockingHttp(url, headers, tls, timeout_s)
        self.url = self._http.url
        self.close = self._http.close

    def request(self, method: str, path: str, body: object = None, *, has_body: bool = False) -> Answer:
        """Send `body` as JSON (with `has_body` also null). Raises UnreachableError, RefusedError, AnswerError."""
        data = json.dumps(body).encode() if has_body or body is not None else None
        try:
            answer = self._http.request(method, path, data)
        except ServerUnreachableError as error:
            raise UnreachableError(str(error), place=error.place, unsent=error.unsent) from error
        except BadAnswerError as error:
            raise AnswerError(str(error)) from error
        if 200 <= answer.status < 300:
            return Answer(*answer)
        raise refused(answer.status, reason_of(answer.body, answer.status))


def reason_of(payload: bytes, status: int) -> str:
    """Pulsar answers `{"reason": "..."}`; other servers answer what they like."""
    try:
        return str(json.loads(payload)["reason"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}"
