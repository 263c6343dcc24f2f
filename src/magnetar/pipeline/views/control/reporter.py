"""A driver tells the brokers whose topics it reads what it does, so that `explain` and the console know of it."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final
from urllib.parse import quote

import msgspec

from magnetar.base.clock import Clock
from magnetar.pipeline.connect.admin_rest import AdminRest
from magnetar.pipeline.connect.errors import AdminRequestError, AdminUnreachableError
from magnetar.pipeline.connect.options import read_options
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.state.manifest import Manifest
from magnetar.pipeline.views.control.reports import report_of
from magnetar.pipeline.views.control.status import Status
from magnetar.pipeline.views.source.options import reader_options

REPORT_S: Final = 20.0
"""Between reports while nobody looks."""

FOLLOWED_S: Final = 2.0
"""Between reports while somebody looks at the pipeline in a console."""

TIMEOUT_S: Final = 5.0
"""A broker that takes longer to take a report is told the next time."""

logger = logging.getLogger(__name__)


class Reporter:
    """Between `with`, around everything else of a run: the last report says how it ended. `status` is asked from another thread."""

    def __init__(self, name: str, clock: Clock, status: Callable[[], Status]) -> None:
        self._name = name
        self._clock = clock
        self._status = status
        self._manifest: Callable[[], Manifest] | None = None
        self._brokers: dict[str, AdminRest] = {}
        self._wake = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    @property
    def consoles(self) -> dict[str, str]:
        """The pipeline's page in the console of each broker, by the broker's address."""
        return {url: f"{url}/console/pipelines/{quote(self._name, safe='')}" for url in self._brokers}

    def __enter__(self) -> Reporter:
        return self

    def attach(self, sources: Mapping[str, CreateSource], manifest: Callable[[], Manifest]) -> None:
        """From now on tell the brokers of these sources, as far as they name an `admin.url`."""
        self._manifest = manifest
        for source in sources.values():
            connection = read_options(reader_options(source)).connection
            if connection.admin_url:
                self._brokers.setdefault(connection.admin_url, AdminRest(connection, TIMEOUT_S))
        if self._brokers and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pipeline-report", daemon=True)
            self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._tell()

    def _run(self) -> None:
        while not self._ended:
            followed = self._tell()
            self._wake.wait(FOLLOWED_S if followed else REPORT_S)

    def _tell(self) -> bool:
        """Whether somebody looks."""
        assert self._manifest is not None
        body = msgspec.json.encode(report_of(self._status(), self._manifest(), socket.gethostname()))
        followed = False
        for url, broker in list(self._brokers.items()):
            try:
                followed = broker.report(self._name, body) or followed
            except AdminUnreachableError:
                continue  # the driver has its own way of finding that out
            except AdminRequestError as error:
                logger.info("pipeline is not reported pipeline=%s broker=%s error=%s", self._name, url, error)
                del self._brokers[url]
        return followed
