"""The console in a real browser: Debian's chromium with its driver. A smoke test where they are; the whole tour with screenshots is long.

CONSOLE_SCREENSHOTS=DIR keeps the pictures of the tour.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Double, Integer, Record, String

from magnetar.admin.client import AdminClient
from magnetar.base.clock import SystemClock
from magnetar.base.ports import free_ports
from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.views.control.listing import overview
from magnetar.pipeline.views.control.why import report_of_overview
from magnetar.testing.server import ServerProcess
from tests.integration.security.conftest import Secured
from tests.support.stored_pipelines import MINUTE_US, StoredPipeline
from tests.support.tokens import token
from tests.support.waiting import wait_until

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="needs Debian's chromium and chromium-driver: apt-get install chromium chromium-driver",
)

HOSTILE = "<img src=x onerror=document.title='broken'>"


class Order(Record):
    id = Integer()
    customer = String()
    total = Double()


class Browser:
    """Chromium without a window. `errors` are what its console has logged: a script or style that was blocked is one."""

    def __init__(self, base: str) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service

        options = Options()
        for word in (
            "headless=new",
            "no-sandbox",
            "disable-gpu",
            "disable-dev-shm-usage",
            "hide-scrollbars",
            "window-size=1280,900",
        ):
            options.add_argument(f"--{word}")
        options.binary_location = str(CHROMIUM)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
        self.base = base

    def open(self, path: str) -> None:
        self.driver.get(self.base + path)

    def find(self, css: str) -> Any:
        return self.driver.find_element("css selector", css)

    def text(self, css: str = "main") -> str:
        """What a person reads there; empty without such an element. Found and read in one step of the page's own thread:
        a live page may put another element in its place between two."""
        return str(self.driver.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", css))

    def wait_for(self, wanted: str, css: str = "main") -> None:
        wait_until(lambda: wanted in self.text(css), 60, f"{wanted!r} in {css}")

    def errors(self) -> list[str]:
        return [each["message"] for each in self.driver.get_log("browser")]

    def emulate(self, *, dark: bool = False, width: int = 1280) -> None:
        media = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(self.driver.execute_script("return document.documentElement.scrollWidth - innerWidth"))


@pytest.fixture
def browse() -> Iterator[Callable[[str], Browser]]:
    opened: list[Browser] = []

    def new(base: str) -> Browser:
        opened.append(Browser(base))
        return opened[-1]

    yield new
    for each in opened:
        each.driver.quit()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "data").start()
    yield process
    process.close()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[pulsar.Client]:
    found = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield found
    found.close()


def test_a_page_follows_the_server(
    server: ServerProcess, client: pulsar.Client, browse: Callable[[str], Browser], tmp_path: Path
) -> None:
    """The smoke test: nothing is blocked by the policy, numbers change by themselves, hostile names stay text."""
    topic = f"persistent://public/default/{HOSTILE}"
    client.subscribe(topic, HOSTILE).close()
    producer = client.create_producer(topic)
    browser = browse(server.http_url)
    browser.open("/")
    browser.wait_for("● live", "#live")
    alarms = re.findall(r"(?:Alarm|Warning):.*", browser.text())
    assert all("the disk of" in alarm for alarm in alarms), alarms  # how full it is depends on the machine
    browser.find("#go").send_keys(topic + "\n")
    browser.wait_for(HOSTILE, "h1")
    browser.wait_for("● live", "#live")
    for _ in range(3):
        producer.send(b"x")
    browser.wait_for("3", "[data-live=subscriptions] td.n")
    assert browser.driver.title.startswith(HOSTILE)

    with pipeline(tmp_path, server.http_url) as admin:
        browser.open("/console/pipelines/flights")
        browser.wait_for("● live", "#live")
        assert "unit 0: 128" in browser.text("[data-live=units]")
        report = admin.pipelines.get("flights")
        report.mapping = VnodeMapping.from_json(report.mapping).rescale(3).to_json()
        admin.pipelines.report("flights", report)
        browser.wait_for("85 vnodes have moved since this page was opened", "[data-live=units]")
        browser.find("[data-live=views] .why").click()
        browser.wait_for("Why?", "h1")
    assert browser.errors() == []


@contextmanager
def pipeline(directory: Path, http_url: str, admin_token: str | None = None) -> Iterator[AdminClient]:
    """One that reports: `flights`, which reads from two topics."""
    topics = ("persistent://shop/orders/placed", "persistent://shop/orders/returned")
    stored = StoredPipeline(directory, "flights", topics=topics)
    stored.commit({"a": 24 * MINUTE_US, "b": 9 * MINUTE_US})
    stages = {
        "sums/1-aggregate": {"rows": 4000, "rows_per_s": 812.0},
        "w/1-aggregate": {"rows": 4000, "rows_per_s": 823.0},
    }
    facts = {"rows_per_s": 1635.0, "lag_messages": 40, "epoch_s": 0.41, "busy": 0.62, "work": 0.33}
    with (
        stored.driven(lags={"a": 40, "b": 0}, stages=stages, **facts),
        AdminClient(http_url, token=admin_token) as admin,
    ):
        admin.pipelines.report("flights", report_of_overview(overview(str(stored.directory), SystemClock())))
        yield admin


TOUR = {
    "overview": "/console/",
    "tenants": "/console/tenants",
    "topics": "/console/tenants/shop/orders?sort=backlog",
    "topic": "/console/topics/persistent/shop/orders/placed",
    "messages": "/console/topics/persistent/shop/orders/placed/messages",
    "schemas": "/console/topics/persistent/shop/orders/placed/schemas",
    "policies": "/console/topics/persistent/shop/orders/placed/policies",
    "keys": "/console/topics/persistent/shop/orders/placed/subscriptions/warehouse",
    "bundles": "/console/tenants/shop/orders/bundles",
    "pipelines": "/console/pipelines",
    "pipeline": "/console/pipelines/flights",
    "view": "/console/explain/view?pipeline=flights&view=w",
    "regions": "/console/regions",
    "lanes": "/console/topics/persistent/shop/geo/stock/regions",
    "why": "/console/explain/subscription?topic=persistent://shop/orders/placed&subscription=audit",
}


@pytest.mark.long
def test_the_tour(tmp_path: Path, browse: Callable[[str], Browser]) -> None:
    """Every page in light and dark, wide and narrow, behind a login; publish, skip with its preview, log out."""
    from tests.integration.security.conftest import start

    secured = start(tmp_path, managedLedgerMaxEntriesPerLedger=100, managedLedgerMinLedgerRolloverTimeMinutes=0)
    pictures = Path(os.environ.get("CONSOLE_SCREENSHOTS", tmp_path / "pictures"))
    pictures.mkdir(parents=True, exist_ok=True)
    try:
        secured.admin("PUT", "tenants/shop", {"adminRoles": ["shop-admin"], "allowedClusters": ["standalone"]})
        secured.admin("PUT", "namespaces/shop/orders")
        secured.admin(
            "POST", "namespaces/shop/orders/retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}
        )
        client = pulsar.Client(
            secured.process.service_url,
            authentication=pulsar.AuthenticationToken(token("root")),
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        consumers = _traffic(client)
        _regions(secured, client)
        browser = browse(secured.process.http_url)
        _log_in(browser)
        with pipeline(tmp_path, secured.process.http_url, token("root")):
            for name, path in TOUR.items():
                _look(browser, pictures, name, path)
        _act(browser)
        browser.find(".who button").click()
        browser.wait_for("Log in", "h1")
        del consumers
        client.close()
    finally:
        secured.process.close()


def _traffic(client: pulsar.Client) -> list[pulsar.Consumer]:
    """Orders with keys, in several ledgers; a group that holds some of them, and subscriptions that stand behind."""
    topic = "persistent://shop/orders/placed"
    schema = AvroSchema(Order)
    for name in ("audit", "invoices"):
        client.subscribe(topic, name, schema=schema, consumer_type=pulsar.ConsumerType.Shared).close()
    kind = pulsar.ConsumerType.KeyShared
    group = [client.subscribe(topic, "warehouse", kind, schema=schema, consumer_name=f"picker-{n}") for n in range(2)]
    producer = client.create_producer(topic, schema=schema, producer_name="web-shop", batching_enabled=False)
    for number in range(350):
        order = Order(id=number, customer=f"customer-{number % 40}", total=number * 1.5)
        producer.send_async(order, None, partition_key=order.customer, properties={"source": "web"})
    producer.flush()
    for consumer in group:
        for place in range(120):
            try:
                message = consumer.receive(500)
            except pulsar.Timeout:
                break
            if place % 10:
                consumer.acknowledge(message)
    return [*group, client.subscribe(topic, "warehouse", kind, schema=schema, consumer_name="picker-2")]


def _regions(secured: Secured, client: pulsar.Client) -> None:
    """A topic that is to be in a second cluster, which does not answer."""
    (port,) = free_ports(1)
    address = {"serviceUrl": f"http://127.0.0.1:{port}", "brokerServiceUrl": f"pulsar://127.0.0.1:{port}"}
    secured.admin("PUT", "clusters/east", address)
    secured.admin("POST", "tenants/shop", {"adminRoles": ["shop-admin"], "allowedClusters": ["standalone", "east"]})
    secured.admin("PUT", "namespaces/shop/geo", {"replication_clusters": ["standalone", "east"]})
    topic = "persistent://shop/geo/stock"
    client.subscribe(topic, "shelves", replicate_subscription_state_enabled=True).close()
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(20):
        producer.send(b"x")


def _log_in(browser: Browser) -> None:
    browser.open("/console/login?next=%2Fconsole%2F")
    browser.find("textarea").send_keys("no.such.token")
    browser.find("main button").click()
    browser.wait_for("Log in", "h1")
    assert "token" in browser.text("[role=alert]")
    browser.driver.get_log("browser")  # a 401 is logged, as it should be
    browser.find("textarea").send_keys(token("root"))
    browser.find("main button").click()
    browser.wait_for("Overview", "h1")
    assert browser.driver.execute_script("return document.cookie") == ""


def _look(browser: Browser, pictures: Path, name: str, path: str) -> None:
    for kind, options in (("light", {}), ("dark", {"dark": True}), ("narrow", {"width": 400})):
        browser.emulate(**options)
        browser.open(path)
        if browser.driver.find_elements("css selector", "[data-live]"):
            browser.wait_for("● live", "#live")
            time.sleep(5 if kind == "light" else 0)  # for a chart with some points in the picture
        assert browser.overflow() <= 0, f"{name} scrolls sideways when it is {kind}"
        browser.driver.save_screenshot(str(pictures / f"{name}-{kind}.png"))
        assert browser.errors() == [], name
    browser.emulate()


def _act(browser: Browser) -> None:
    browser.open(TOUR["messages"])
    browser.find("textarea[name=payload]").send_keys('{"id": 1, "customer": "by hand", "total": 1}')
    browser.find("main .primary").click()
    browser.wait_for("Published")
    browser.wait_for("by hand")
    browser.open("/console/topics/persistent/shop/orders/placed/subscriptions/audit")
    browser.find("input[name=count]").clear()
    browser.find("input[name=count]").send_keys("50")
    browser.find("form[action$=skip] button").click()
    browser.wait_for("about 301 entries")
    browser.find(".danger").click()
    browser.wait_for("Done")
    browser.wait_for("301", "[data-live=rates]")
    browser.driver.switch_to.active_element.send_keys("g")
    browser.driver.switch_to.active_element.send_keys("o")
    browser.wait_for("Overview", "h1")
