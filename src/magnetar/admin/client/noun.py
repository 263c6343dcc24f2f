"""What the nouns of the client have in common: from a path's template and names to a request, and from its answer to a type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from magnetar.admin.client.errors import AnswerError
from magnetar.admin.client.http import Answer
from magnetar.broker.naming import NamespaceName, TopicName

ADMIN = "/admin/v2"

Texts = list[str]
"""`list[str]`, for classes with a method called `list`."""


class Call(Protocol):
    """Sends a request. `template` is the path's in the OpenAPI document; `names` fill it, `query` follows it."""

    def __call__(
        self,
        method: str,
        template: str,
        names: Mapping[str, object],
        query: Mapping[str, object] | None = None,
        body: object = None,
        *,
        has_body: bool = False,
    ) -> Answer: ...


class Noun:
    """Templates are given without `/admin/v2`."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def _get(self, template: str, kind: Any, query: Mapping[str, object] | None = None, **names: object) -> Any:
        """The answer as a value of a type; None where nothing is set."""
        answer = self._call("GET", ADMIN + template, names, query)
        return as_kind(answer.json(), kind)

    def _text(self, method: str, template: str, **names: object) -> str:
        return self._call(method, ADMIN + template, names).body.decode("utf-8", "replace")

    def _put(
        self, template: str, body: object = None, query: Mapping[str, object] | None = None, **names: object
    ) -> None:
        self._call("PUT", ADMIN + template, names, query, msgspec.to_builtins(body))

    def _post(
        self, template: str, body: object = None, query: Mapping[str, object] | None = None, **names: object
    ) -> Answer:
        return self._call("POST", ADMIN + template, names, query, msgspec.to_builtins(body))

    def _converted(self, answer: Answer, kind: Any) -> Any:
        return as_kind(answer.json(), kind)

    def _delete(self, template: str, query: Mapping[str, object] | None = None, **names: object) -> Answer:
        return self._call("DELETE", ADMIN + template, names, query)


def as_kind(document: Any, kind: Any) -> Any:
    """A document as a value of a type, None for none. Raises AnswerError."""
    if document is None:
        return None
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise AnswerError(f"the server's answer is not as expected: {error}") from error


def filled(template: str, names: Mapping[str, object]) -> str:
    """The path, each name quoted as one part of it."""
    return re.sub(r"\{(\w+)\}", lambda match: quote(str(names[match[1]]), safe=""), template)


def query_text(query: Mapping[str, object] | None) -> str:
    """`?a=b&c=true`; values that are None are left out, a list is its values one by one."""
    given = {name: value for name, value in (query or {}).items() if value is not None}
    pairs = (
        f"{name}={quote(_word(each), safe='')}"
        for name, value in given.items()
        for each in (value if isinstance(value, list) else [value])
    )
    return "?" + "&".join(pairs) if given else ""


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def namespace_names(namespace: str) -> dict[str, Any]:
    """Path parameters of `tenant/namespace`. Raises InvalidTopicNameError."""
    name = NamespaceName.parse(namespace)
    return {"tenant": name.tenant, "namespace": name.namespace}


def topic_names(topic: str) -> dict[str, Any]:
    """Path parameters of a short or complete topic name. Raises InvalidTopicNameError."""
    name = TopicName.parse(topic)
    return {
        "domain": name.domain,
        "tenant": name.tenant,
        "namespace": name.namespace,
        "topic": name.local_name,
    }


TOPIC = "/{domain}/{tenant}/{namespace}/{topic}"
NAMESPACE = "/namespaces/{tenant}/{namespace}"
