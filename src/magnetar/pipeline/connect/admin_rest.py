"""The few questions that only the broker's admin API answers: which topics match and how many entries lie in which ledger."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from magnetar.client.blocking_http import BlockingHttp
from magnetar.client.errors import BadAnswerError, ServerUnreachableError
from magnetar.pipeline.connect.errors import AdminRequestError, AdminUnreachableError
from magnetar.pipeline.connect.options import AdminAccess, Connection
from magnetar.pipeline.connect.segment_order import SEGMENT, is_segment

TIMEOUT_S: Final = 30.0
"""A request that takes longer fails with AdminRequestError; Spark then runs the query's batch again."""
SHOWN_BYTES_MAX: Final = 200
"""Beginning of a refusal that is repeated in the error."""
_PARTITION: Final = re.compile(r"-partition-\d+$")


class LedgerSize(NamedTuple):
    """`size_bytes` of the entries as they are stored."""

    ledger: int
    entries: int
    size_bytes: int


class AdminRest:
    """Blocking requests, for the driver's side only."""

    __slots__ = ("_access", "_timeout_s", "_tls", "_url")

    def __init__(self, connection: Connection, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._url = connection.admin_url or ""
        self._access = connection.admin or connection
        self._tls = _tls(self._access) if self._url.startswith("https://") else None

    def matching_topics(self, pattern: str) -> list[str]:
        """Full names without partitions, of the namespace that the pattern names, else of public/default."""
        path = pattern.removeprefix("persistent://")
        tenant, namespace = "public", "default"
        if path.count("/") >= 2:
            tenant, namespace, path = path.split("/", 2)
        expression = re.compile(path)
        base = f"/admin/v2/persistent/{quote(tenant, safe='')}/{quote(namespace, safe='')}"
        names = {_PARTITION.sub("", name) for name in self._get(base)} | set(self._get(f"{base}/partitioned"))
        locals_of = {name: name.rpartition("/")[2] for name in names if name.startswith("persistent://")}
        return sorted(name for name, local in locals_of.items() if expression.fullmatch(local) and local[:2] != "__")

    def ledgers(self, topic: str) -> list[tuple[int, int]]:
        """(ledger, entries) in order; the entries of the last one are those written so far."""
        return [(each.ledger, each.entries) for each in self.ledger_sizes(topic)]

    def ledger_sizes(self, topic: str) -> list[LedgerSize]:
        """In order; the last one is counted as it is so far."""
        document = self._get(f"{_topic_path(topic)}/internalStats")
        listed = [
            LedgerSize(int(each["ledgerId"]), int(each["entries"]), int(each.get("size", 0)))
            for each in document.get("ledgers", [])
        ]
        entries, size = int(document.get("currentLedgerEntries", 0)), int(document.get("currentLedgerSize", 0))
        if listed and listed[-1].entries < entries:
            listed[-1] = LedgerSize(listed[-1].ledger, entries, size)
        return listed

    def deduplication(self, topic: str) -> bool:
        """The policy that holds for the topic (without partition number)."""
        return bool(self._get(f"{_topic_path(topic)}/deduplicationEnabled?applied=true"))

    def namespace_deduplication(self, topic: str) -> bool:
        """Whether the namespace of a scalable topic, which has no policy of its own, or else the brokers' settings say so."""
        tenant, namespace, _ = _parts(topic)
        found = self._get(f"/admin/v2/namespaces/{quote(tenant, safe='')}/{quote(namespace, safe='')}/deduplication")
        if found is None:
            found = self._get("/admin/v2/brokers/configuration/runtime").get("brokerDeduplicationEnabled") == "true"
        return bool(found)

    def set_deduplication(self, topic: str) -> None:
        """Switch it on for one topic and its partitions."""
        self._ask("POST", f"{_topic_path(topic)}/deduplicationEnabled", b"true")

    def deduplicates(self, topic: str) -> bool:
        """Whether the broker that serves the partition does it by now."""
        status: object = self._get(f"{_topic_path(topic)}/stats").get("deduplicationStatus")
        return status == "Enabled"

    def report(self, pipeline: str, report: bytes) -> bool:
        """Tell a broker what a pipeline does; True if somebody looks at it there. Apache's brokers refuse it: they have no such route."""
        path = f"/admin/v2/pipelines/{quote(pipeline, safe='')}"
        answer: object = self._ask("PUT", path, report)
        return isinstance(answer, dict) and answer.get("followed") is True

    def _get(self, path: str) -> Any:
        return self._ask("GET", path)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        try:
            http = BlockingHttp(self._url, self._headers, self._tls, self._timeout_s, trusts_redirects=True)
            try:
                answer = http.request(method, path, body)
            finally:
                http.close()
            if answer.status >= 300:
                said = answer.body[:SHOWN_BYTES_MAX].decode(errors="replace")
                raise AdminRequestError(f"{method} {path}: HTTP {answer.status} {said}; check admin.url and rights")
            return json.loads(answer.body) if answer.body.strip() else None
        except ServerUnreachableError as error:
            raise AdminUnreachableError(f"{method} {path}: {error}; check admin.url") from None
        except (BadAnswerError, OSError, ValueError) as error:
            raise AdminRequestError(f"{method} {path}: {error}; check admin.url") from None

    def _headers(self) -> dict[str, str]:
        token = token_of(self._access)
        return {"Authorization": f"Bearer {token}"} if token else {}


def _topic_path(topic: str) -> str:
    if is_segment(topic):
        return "/admin/v2/segments/" + "/".join(quote(part, safe="") for part in topic.removeprefix(SEGMENT).split("/"))
    return "/admin/v2/persistent/" + "/".join(quote(part, safe="") for part in _parts(topic))


def _parts(topic: str) -> Iterator[str]:
    yield from topic.partition("://")[2].split("/", 2)


def _tls(access: Connection | AdminAccess) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=access.tls_trust_certs)
    context.check_hostname = access.tls_validate_hostname and not access.tls_allow_insecure
    if access.tls_allow_insecure:
        context.verify_mode = ssl.CERT_NONE
    return context


def token_of(connection: Connection | AdminAccess) -> str | None:
    """What the plugin for tokens sends: `token:...`, `{"token": "..."}` or the bare token; a file's is read."""
    plugin, params = connection.auth_plugin or "", connection.auth_params or ""
    if "token" not in plugin.lower() or not params:
        return None
    if params.startswith("{"):
        params = str(json.loads(params).get("token", ""))
    if params.startswith("file:"):
        with open(params.removeprefix("file:").removeprefix("//"), encoding="utf-8") as file:
            return file.read().strip()
    return params.removeprefix("token:")
