"""This broker's load report: measured every few seconds, written to `/loadbalance/brokers/<id>` when it says something new.

The usage of the machine by this process is read from /proc without a library; other systems than Linux report less.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from magnetar import __version__
from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.broker.config import BrokerConfig
from magnetar.broker.load_balance.load_report import BrokerLoad, BundleLoad, Usage, report_document, worth_reporting
from magnetar.broker.namespaces.brokers import Registration

ONE_CORE_PERCENT: Final = 100.0
"""The most that counts: one thread of Python runs at a time, however many cores there are."""

SAMPLE_MIN_S: Final = 1.0
"""Shortest interval that is measured: over less, a broker that has just started would look overloaded and get no bundles."""

NIC_GBPS: Final = 10.0
"""Assumed speed when no network interface reports its own."""

T = TypeVar("T")

_MIB: Final = 1024 * 1024
_KBIT_PER_GBIT: Final = 1_000_000


class HostLoad(NamedTuple):
    """CPU in percent of a core, memory in MiB, bandwidth in kbit/s: Pulsar's units."""

    cpu: Usage
    memory: Usage
    bandwidth_in: Usage
    bandwidth_out: Usage


class HostMeter(Protocol):
    """Measures what this process takes of its machine."""

    def sample(self) -> HostLoad:
        """Since the sample before."""
        ...


class HostUsage:
    """`sample` measures since the sample before; one that comes sooner than `SAMPLE_MIN_S` repeats what that said, at first nothing."""

    def __init__(self, clock: Clock, nic_speed_gbps: float = 0.0, proc: Path = Path("/proc")) -> None:
        """`nic_speed_gbps`: 0 asks the interfaces."""
        self._clock = clock
        self._proc = proc
        self._nic_limit_kbit = nic_speed_gbps * _KBIT_PER_GBIT
        self._sampled_s = clock.monotonic_s()
        self._cpu_s = time.process_time()
        self._received, self._sent = self._network_bytes()
        limit = self._nic_limit_kbit or self._nic_kbit()
        self._load = HostLoad(Usage(0, ONE_CORE_PERCENT), self._memory(), Usage(0, limit), Usage(0, limit))

    def sample(self) -> HostLoad:
        now_s = self._clock.monotonic_s()
        elapsed_s = now_s - self._sampled_s
        if elapsed_s < SAMPLE_MIN_S:
            return self._load
        cpu_s = time.process_time()
        received, sent = self._network_bytes()
        limit = self._nic_limit_kbit or self._nic_kbit()
        self._load = HostLoad(
            cpu=Usage(min(100 * (cpu_s - self._cpu_s) / elapsed_s, ONE_CORE_PERCENT), ONE_CORE_PERCENT),
            memory=self._memory(),
            bandwidth_in=Usage(max(0, received - self._received) * 8 / 1000 / elapsed_s, limit),
            bandwidth_out=Usage(max(0, sent - self._sent) * 8 / 1000 / elapsed_s, limit),
        )
        self._sampled_s, self._cpu_s, self._received, self._sent = now_s, cpu_s, received, sent
        return self._load

    def _memory(self) -> Usage:
        return Usage(self._resident_bytes() / _MIB, self._memory_limit_bytes() / _MIB)

    def _network_bytes(self) -> tuple[int, int]:
        """(received, sent) of all interfaces but loopback, since the machine started."""
        received = sent = 0
        for line in _lines(self._proc / "net/dev")[2:]:
            name, _, numbers = line.partition(":")
            fields = numbers.split()
            if name.strip() != "lo" and len(fields) > 8:
                received += int(fields[0])
                sent += int(fields[8])
        return received, sent

    def _nic_kbit(self) -> float:
        """The speed of all interfaces together."""
        speeds = [_number(path) for path in Path("/sys/class/net").glob("*/speed") if path.parent.name != "lo"]
        found = sum(speed for speed in speeds if speed > 0)  # Mbit/s; -1: unknown
        return found * 1000 or NIC_GBPS * _KBIT_PER_GBIT

    def _resident_bytes(self) -> int:
        fields = " ".join(_lines(self._proc / "self/statm")).split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0

    def _memory_limit_bytes(self) -> float:
        """The container's limit, if that is less than the machine has."""
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limit = _number(Path("/sys/fs/cgroup/memory.max"))
        return min(physical, limit) if limit > 0 else physical


def _lines(path: Path) -> list[str]:
    return _read(path, lambda text: text.splitlines(), [])


def _number(path: Path) -> float:
    return _read(path, lambda text: float(text.strip()), -1.0)


def _read(path: Path, parse: Callable[[str], T], default: T) -> T:
    try:
        return parse(path.read_text())
    except (OSError, ValueError):  # an interface that is down refuses to say its speed
        return default


logger = logging.getLogger(__name__)

IDENTITY: Final[Mapping[str, Any]] = {
    "brokerVersionString": __version__,
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
    "persistentTopicsEnabled": True,
    "nonPersistentTopicsEnabled": True,
    "protocols": {},
}
"""Fields of a report besides load and addresses."""


class Reporter:
    """Runs for as long as the broker; it reports also where nobody balances loads, for people to see."""

    def __init__(
        self,
        *,
        registration: Registration,
        loads: Callable[[], Awaitable[dict[str, BundleLoad]]],
        config: BrokerConfig,
        clock: Clock,
        host: HostMeter | None = None,
    ) -> None:
        """`host`: the operating system's figures by default."""
        self._registration = registration
        self._loads = loads
        self._config = config
        self._clock = clock
        self._host = host or HostUsage(clock, config.settings.load_balancer_override_broker_nic_speed_gbps)
        self._started_ms = clock.now_ms()
        self._written: BrokerLoad | None = None
        self.load = BrokerLoad(started_ms=self._started_ms)
        """The load as last measured."""
        self.reports_written = 0
        """Reports written since the start."""

    @property
    def document(self) -> dict[str, Any]:
        """The last measurement in Pulsar's form."""
        return report_document(self.load, IDENTITY, self._written)

    async def current(self) -> dict[str, Any]:
        """The same, with what the bundles do now; the host's figures are those of the last measurement."""
        now = replace(self.load, bundles=await self._loads(), updated_ms=self._clock.now_ms())
        return report_document(now, IDENTITY, self._written)

    async def run(self) -> None:
        """Report until cancelled. A failed write is only logged: the next report replaces it."""
        while True:
            try:
                await self.report()
            except MagnetarError as error:
                logger.warning("load report not written error=%s", error)
            await asyncio.sleep(self._config.settings.load_balancer_report_update_min_interval_ms / 1000)

    async def report(self) -> None:
        """Measure now, and write it if that is worth it."""
        bundles = await self._loads()
        host = self._host.sample()
        self.load = BrokerLoad(*host, bundles=bundles, updated_ms=self._clock.now_ms(), started_ms=self._started_ms)
        reason = worth_reporting(self._written, self.load, self._config.settings)
        if reason is None:
            return
        await self._registration.report(self.document)
        self._written = self.load
        self.reports_written += 1
        logger.debug("load report written reason=%s", reason)
