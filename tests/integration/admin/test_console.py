"""The console over HTTP as a browser sees it, without authentication: pages, their live parts, hostile names, many topics."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pulsar
import pytest
import requests

from magnetar.admin.console.pages import all_pages
from magnetar.base.executor import ThreadExecutor
from magnetar.metadata import paths
from magnetar.metadata.sqlite import SqliteMetadataStore
from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api

HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}\u202e"


class Elements(HTMLParser):
    """Every element of a page with its attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


class Pages:
    """A browser without scripts: cookies, and forms with their token."""

    def __init__(self, server: ServerProcess) -> None:
        self.base = server.http_url
        self.session = requests.Session()

    def get(self, path: str, status: int = 200, **options: object) -> requests.Response:
        response = self.session.get(f"{self.base}{path}", timeout=60, **options)  # type: ignore[arg-type]
        assert response.status_code == status, response.text[-2000:]
        return response

    def text(self, path: str, status: int = 200) -> str:
        return Elements(self.get(path, status).text).text

    def form_token(self) -> str:
        found = re.search(r'name="form_token" value="(\w+)"', self.get("/console/forms").text)
        assert found is not None
        return found[1]

    def parts(self, path: str) -> set[str]:
        """Names of the parts that a page follows live."""
        return set(re.findall(r'data-live="(\w+)"', self.get(path).text))

    def first_events(self, path: str) -> dict[str, str]:
        """What is sent first to a page that is followed live, by the name of its part."""
        wanted, found, name = self.parts(path), {}, ""
        headers = {"Accept": "text/event-stream"}
        with self.session.get(f"{self.base}{path}", headers=headers, stream=True, timeout=60) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            for line in response.iter_lines(decode_unicode=True):
                if not line and wanted <= set(found):
                    break
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    found[name] = found.get(name, "") + line.removeprefix("data: ") + "\n"
        return found


@pytest.fixture
def pages(server: ServerProcess) -> Iterator[Pages]:
    found = Pages(server)
    yield found
    found.session.close()


def assert_no_alarm(overview: str) -> None:
    """Nothing is wrong with a server that has just started, but that the disk of this machine may be rather full."""
    alarms = re.findall(r"(?:Alarm|Warning):.*", overview)
    assert all("the disk of" in alarm for alarm in alarms), alarms
    assert bool(alarms) != ("All brokers and bookies work" in overview)


def topic_page(namespace: str, name: str, rest: str = "") -> str:
    return f"/console/topics/persistent/{namespace}/{quote(name, safe='')}{rest}"


def test_the_root_leads_to_the_console(pages: Pages) -> None:
    response = pages.get("/")
    assert response.history[0].status_code == 303
    assert response.url == f"{pages.base}/console/"
    assert_no_alarm(Elements(response.text).text)
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["Cache-Control"] == "no-store"


def test_nothing_is_inline_and_nothing_comes_from_elsewhere(pages: Pages, namespace: str, api: Api) -> None:
    """What the content security policy would block would be missing; what it would let through would be a hole."""
    api.put(f"persistent/{namespace}/one")
    for path in ("/console/", "/console/tenants", f"/console/tenants/{namespace}", topic_page(namespace, "one")):
        for tag, attributes in Elements(pages.get(path).text).found:
            assert tag not in ("style", "iframe", "object", "embed", "base")
            assert "style" not in attributes
            assert not [name for name in attributes if name.startswith("on")]
            assert tag != "script" or (attributes.get("src") or "").startswith("/console/static/")
            for name in ("src", "href", "action"):
                target = attributes.get(name) or ""
                assert target.startswith(("/", "#", "?", pages.base)) or not target, target


def test_static_files(pages: Pages) -> None:
    for name, kind in (("console.css", "text/css"), ("console.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
        response = pages.get(f"/console/static/{name}")
        assert response.headers["Content-Type"].startswith(kind)
        assert "immutable" in response.headers["Cache-Control"]
    for name in ("..%2fconsole.py", "../console.py", "console.css%00", ""):
        response = requests.Request("GET", f"{pages.base}/console/static/x").prepare()
        response.url = f"{pages.base}/console/static/{name}"
        assert pages.session.send(response, timeout=60).status_code == 404


def test_a_page_that_is_not_there(pages: Pages) -> None:
    assert "Not found" in pages.text("/console/nothing", 404)
    assert "Tenant not found" in pages.text("/console/tenants/nobody", 404)
    pages.get("/console/topics/persistent/public/default/no-such-topic", 404)
    pages.get("/console/topics/nonsense/public/default/x", 412)


def test_hostile_names_are_text(pages: Pages, namespace: str, api: Api, client: pulsar.Client) -> None:
    """Of a topic, a subscription, a producer, a consumer, on every page and in what is sent live."""
    name = f"persistent://{namespace}/{HOSTILE}"
    consumer = client.subscribe(name, HOSTILE, consumer_name=HOSTILE)
    producer = client.create_producer(name, producer_name=HOSTILE)
    producer.send(b"x")
    for path in (f"/console/tenants/{namespace}", topic_page(namespace, HOSTILE)):
        live = "".join(pages.first_events(path).values())
        for page in (pages.get(path).text, live):
            found = Elements(page)
            assert [each for tag, each in found.found if any(name.startswith("on") for name in each)] == []
            assert [each for tag, each in found.found if each.get("src") == "x"] == []
            assert "<img src=x onerror=alert(1)>\"'&{{7*7}}\\u202e" in found.text
            assert "\u202e" not in page
    consumer.close()
    producer.close()


def test_an_error_shows_what_was_asked_as_text(pages: Pages) -> None:
    page = pages.get(f"/console/tenants/{quote(HOSTILE, safe='')}", 412).text
    assert "<img src=x" not in page


def test_topics_page_by_page(pages: Pages, namespace: str, api: Api) -> None:
    """Each name once, whatever the page size; partitions are one row, the filter looks at the names' own part."""
    for number in range(70):
        api.put(f"persistent/{namespace}/t{number:03}")
    api.call("PUT", f"persistent/{namespace}/p/partitions", 7, status=204)
    seen: list[str] = []
    after = ""
    while True:
        page = api.call("GET", f"namespaces/{namespace}/topicsPage", params={"limit": 16, "after": after}).json()
        seen += [row["name"] for row in page["topics"]]
        after = page["next"]
        if not after:
            break
    assert page["total"] == 77
    assert seen == [f"persistent://{namespace}/{name}" for name in ["p", *(f"t{number:03}" for number in range(70))]]
    found = api.get(f"namespaces/{namespace}/topicsPage?filter=t06&limit=5")
    assert [row["name"][-4:] for row in found["topics"]] == ["t060", "t061", "t062", "t063", "t064"]
    first = pages.get(f"/console/tenants/{namespace}").text
    assert "7 partitions" in first
    assert "t048" in first
    assert "t050" not in first
    following = re.search(r'href="(\?[^"]+)" rel="next"', first)
    assert following is not None
    second = pages.get(f"/console/tenants/{namespace}{following[1].replace('&amp;', '&')}").text
    assert "t050" in second
    assert "t048" not in second
    assert "t064" in pages.get(f"/console/tenants/{namespace}?filter=064").text


def test_sorted_by_what_counts(pages: Pages, namespace: str, client: pulsar.Client, api: Api) -> None:
    for name, count in (("few", 2), ("many", 9), ("some", 5)):
        topic = f"persistent://{namespace}/{name}"
        client.subscribe(topic, "s").close()
        producer = client.create_producer(topic)
        for _ in range(count):
            producer.send(b"x" * 100)
    for sort in ("backlog", "size"):
        found = api.get(f"namespaces/{namespace}/topicsPage?sort={sort}&limit=2")
        assert [row["name"].rsplit("/")[-1] for row in found["topics"]] == ["many", "some"]
        rest = api.get(f"namespaces/{namespace}/topicsPage?sort={sort}&limit=2&after={found['next']}")
        assert [row["name"].rsplit("/")[-1] for row in rest["topics"]] == ["few"]
        assert rest["next"] == ""
        text = pages.text(f"/console/tenants/{namespace}?sort={sort}")
        assert text.index("many") < text.index("some") < text.index("few")
    standing = api.get(f"namespaces/{namespace}/topicsPage?sort=reason")["topics"]
    assert [(row["name"].rsplit("/")[-1], row["reason"], row["standing"]) for row in standing] == [
        ("many", "no-consumers", 1),
        ("some", "no-consumers", 1),
        ("few", "no-consumers", 1),
    ]
    assert "no consumers" in pages.text(f"/console/tenants/{namespace}?sort=reason")
    for bad in ("sort=nonsense", "domain=x", "sort=backlog&after=x", "limit=x"):
        api.reason("GET", f"namespaces/{namespace}/topicsPage?{bad}", status=400)


def test_a_topic(pages: Pages, namespace: str, client: pulsar.Client) -> None:
    topic = f"persistent://{namespace}/orders"
    consumer = client.subscribe(topic, "billing", consumer_name="till-1")
    producer = client.create_producer(topic, producer_name="shop")
    for _ in range(3):
        producer.send(b"x")
    text = pages.text(topic_page(namespace, "orders"))
    for wanted in ("billing", "shop", "3 entries", "ledger", "everything up to"):
        assert wanted in text, wanted
    consumer.close()
    assert "no consumer" in pages.text(topic_page(namespace, "orders"))


def test_every_live_part_is_rendered_alone(pages: Pages, namespace: str, api: Api) -> None:
    """A block is sent without the page around it: it must not need what only the page has."""
    api.put(f"persistent/{namespace}/one")
    names = dict(zip(("tenant", "namespace"), namespace.split("/"), strict=True)) | {
        "domain": "persistent",
        "topic": "one",
    }
    looked_at: list[str] = []
    for route in all_pages():
        path = route.path
        for name, value in names.items():
            path = path.replace(f"{{{name}}}", value)
        if route.method != "GET" or "{" in path:
            continue
        if pages.session.get(f"{pages.base}{path}", timeout=60).status_code != 200:
            continue
        for part, text in pages.first_events(path).items() if pages.parts(path) else ():
            assert Elements(text).text.split() != [] or "<svg" in text, (path, part)
        looked_at.append(path)
    assert len(looked_at) >= 5


def test_a_stream_is_not_for_pages_of_other_sites(pages: Pages) -> None:
    headers = {"Accept": "text/event-stream", "Sec-Fetch-Site": "cross-site"}
    assert pages.session.get(f"{pages.base}/console/", headers=headers, timeout=60).status_code == 403
    response = pages.session.get(f"{pages.base}/console/", headers={"Host": "evil.example"}, timeout=60)
    assert response.status_code == 421


def test_the_overview_as_json(api: Api) -> None:
    found = api.get("broker-stats/overview")
    assert len(found["brokers"]) == 1
    assert found["brokers"][0]["problem"] is None
    assert [each["state"] for each in found["bookies"]] == ["writable"]


async def _register(path: Path, count: int) -> None:
    """Topics that nobody has used, in a server's metadata while it does not run."""
    executor = ThreadExecutor("topics")
    store = await SqliteMetadataStore.open(path, executor)
    for first in range(0, count, 5_000):
        numbers = range(first, first + 5_000)
        await store.create_missing(
            [paths.managed_ledger_path("public", "default", "persistent", f"topic-{number:06}") for number in numbers]
        )
    await store.close()
    executor.close()


@pytest.mark.long
def test_a_hundred_thousand_topics(tmp_path: Path) -> None:
    """A page has 50 of them whatever their number, and takes no longer than a person waits."""
    server = ServerProcess(tmp_path / "data").start()
    server.stop()
    asyncio.run(_register(tmp_path / "data" / "metadata.sqlite", 100_000))
    server.start()
    try:
        pages = Pages(server)
        first = pages.text("/console/tenants/public/default")
        assert "100,000 topics" in first
        assert "topic-000049" in first
        assert "topic-000050" not in first
        began_s = time.monotonic()
        middle = pages.text("/console/tenants/public/default?after=persistent://public/default/topic-080000")
        assert "topic-080001" in middle
        assert "topic-099999" in pages.text("/console/tenants/public/default?filter=099999")
        assert time.monotonic() - began_s < 30
        assert len(pages.get("/console/tenants/public/default").content) < 100_000
    finally:
        server.close()
