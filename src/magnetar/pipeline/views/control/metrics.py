"""A driver's numbers for Prometheus, under `magnetar_pipeline_*` (docs/how-to/monitor.md)."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Final, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

from magnetar.base.errors import StartupError
from magnetar.base.status_page import HEADERS, status_page
from magnetar.pipeline.views.control.status import Status
from magnetar.pipeline.views.epoch.progress import EpochReport

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

BUCKETS_S: Final = (0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 60)


class PipelineMetrics:
    """Of one pipeline; the label `pipeline` names it, so that several drivers share a dashboard."""

    def __init__(self, name: str) -> None:
        self.registry = CollectorRegistry()
        self.name = self._name = name
        self.consoles: dict[str, str] = {}
        """Of the brokers that it reports to: the pipeline's page there, by their address."""
        self.ready = False
        """True once the driver has told something: it has recovered its state and goes through its epochs."""
        gauges = {
            "epoch": "Number of the last committed epoch",
            "units": "Parallel units",
            "rows_per_second": "Rows of the sources a second, over the last 10 s",
            "busy_ratio": "Share of the last 10 s spent in epochs",
            "work_ratio": "Share of the last 10 s that a unit worked, the mean of all",
            "lag_messages": "Messages in the topics behind the last epoch",
            "state_bytes": "Bytes of all runs that the manifest names",
            "rescale_pause_seconds": "What the last rescale took: planning it, and its own commit",
        }
        self._gauges = {key: self._gauge(key, text) for key, text in gauges.items()}
        self._rows = self._counter("rows", "Rows of the sources")
        self._changes = self._counter("view_changes", "Changes of a view", "view")
        self._counted = self._counter("events", "Late rows, duplicates and whatever else operators count", "event")
        self._moved = self._counter("vnodes_moved", "Vnodes that changed their unit")
        self._epochs = Histogram(
            "magnetar_pipeline_epoch_seconds",
            "Time of an epoch",
            ["pipeline"],
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self._phases = self._gauge("epoch_phase_seconds", "Time of the last epoch by phase", "phase")

    def add(self, report: EpochReport, status: Status) -> None:
        """After an epoch."""
        pipeline = self._name
        self._rows.labels(pipeline).inc(report.rows_in)
        self._moved.labels(pipeline).inc(report.vnodes_moved)
        for view, changes in report.rows_changed.items():
            self._changes.labels(pipeline, view).inc(changes)
        for event, count in report.counters.items():
            self._counted.labels(pipeline, event).inc(count)
        for phase, seconds in report.duration_s.items():
            self._phases.labels(pipeline, phase).set(seconds)
        self._epochs.labels(pipeline).observe(status.epoch_s)
        if report.vnodes_moved:
            self._gauges["rescale_pause_seconds"].labels(pipeline).set(report.pause_s)
        self._gauges["epoch"].labels(pipeline).set(report.epoch)
        self._gauges["units"].labels(pipeline).set(report.units)
        self._gauges["state_bytes"].labels(pipeline).set(report.state_bytes)
        self.tick(status)

    def tick(self, status: Status) -> None:
        """What changes without an epoch."""
        self.ready = True
        if status.lag_messages is not None:
            self._gauges["lag_messages"].labels(self._name).set(status.lag_messages)
        self._gauges["rows_per_second"].labels(self._name).set(status.rows_per_s)
        self._gauges["busy_ratio"].labels(self._name).set(status.busy)
        self._gauges["work_ratio"].labels(self._name).set(status.work)

    def _gauge(self, key: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"magnetar_pipeline_{key}", text, ["pipeline", *labels], registry=self.registry)

    def _counter(self, key: str, text: str, *labels: str) -> Counter:
        return Counter(f"magnetar_pipeline_{key}", text, ["pipeline", *labels], registry=self.registry)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _ServerOfIPv6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Scrapes come every few seconds: they are not logged."""


@contextmanager
def serving(metrics: PipelineMetrics, port: int, host: str = "127.0.0.1") -> Iterator[int]:
    """`/metrics`, `/healthz`, `/readyz`, and at `/` a page with links to consoles, at `http://HOST:PORT` meanwhile. Yields the port, which
    0 leaves to the system.

    Raises StartupError when it is taken.
    """
    try:
        server = make_server(host, port, _app(metrics), _ServerOfIPv6 if ":" in host else _Server, _Quiet)
    except OSError as error:
        raise StartupError(
            f"metrics: port {port} of {host} cannot be used ({error}); give another --metrics-port"
        ) from error
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _app(metrics: PipelineMetrics) -> WSGIApplication:
    shown = make_wsgi_app(metrics.registry)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/":
            facts = {"State": "runs" if metrics.ready else "begins"}
            text = status_page(f"Pipeline {metrics.name}", facts, ("/metrics", "/healthz", "/readyz"), metrics.consoles)
            start_response("200 OK", list(HEADERS.items()))
            return [text.encode()]
        if path not in ("/healthz", "/readyz"):
            return cast("Iterable[bytes]", shown(environ, start_response))
        waits = path == "/readyz" and not metrics.ready
        start_response(
            "503 Service Unavailable" if waits else "200 OK", [("Content-Type", "text/plain; charset=utf-8")]
        )
        return [b"the pipeline has not begun yet\n" if waits else b"ok\n"]

    return app
