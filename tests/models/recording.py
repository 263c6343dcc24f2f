"""What a simulated run did, as the events of Ledger.tla and Bundles.tla.

A ledger's trace begins with `("create", Qw, Qa, ensemble)`. `("add", bookie, entry, ...)`, `("recovery add", bookie, entry, ...)` and
`("fence", bookie)` follow when the bookie answers, `("ack", entry)` when the writer is told, and `("metadata", state, last, firsts,
ensembles, by the writer)` when the metadata service has stored it.

A run of brokers has `acquire`, `leave`, `stay` and `release` with bundle and broker as the service does them, `("session ends", broker)`,
and `("deliver", bundle, broker)` when a broker writes a message for a consumer.

Bookies, processes of brokers and bundles are numbered from 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

from magnetar.bookkeeper.bookie.server.server import BookieServer
from magnetar.bookkeeper.codes import EXPLICIT_NEGATIVES, FLAG_FENCE, FLAG_RECOVERY_ADD
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.broker.connection.handlers.consumer import SessionConsumerChannel
from magnetar.broker.namespaces.ownership import in_bundle
from magnetar.broker.namespaces.records import BundleName, parse_owner
from magnetar.testing.sim import nodes
from magnetar.testing.sim.checkers import Checkers
from magnetar.testing.sim.history import LedgerHistory
from magnetar.testing.sim.loop import PROCESS
from magnetar.testing.sim.messaging.run import MessagingRun, Trims
from magnetar.testing.sim.messaging.scenario import MessagingScenario, messaging_scenario
from magnetar.testing.sim.metadata import MetadataService, SimMetadataStore, run_now
from magnetar.testing.sim.mutations import patch_attribute
from magnetar.testing.sim.run import Run
from magnetar.testing.sim.stage import run_schedule
from magnetar.testing.sim.swarm import Scenario, scenario
from magnetar.testing.sim.world import World
from tests.simulation import schedules, schedules_bookies  # noqa: F401 (they register themselves)
from tests.simulation.script_kit import SCHEDULES

Event = tuple[Any, ...]
Trace = list[Event]

STATES = {LedgerState.OPEN: "open", LedgerState.IN_RECOVERY: "recovery", LedgerState.CLOSED: "closed"}
RUN_LIMIT_S = 1800.0


class Numbers(dict[str, int]):
    """Names as numbers, in the order in which they are first seen."""

    def __missing__(self, name: str) -> int:
        self[name] = len(self) + 1
        return self[name]


# ---- Ledgers


class RecordedBookie:
    """A bookie whose confirmations are events."""

    def __init__(self, bookie: Any, record: LedgerRecord) -> None:
        self._bookie, self._record = bookie, record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bookie, name)

    def _answered(self, kind: str, ledger_id: int, entries: Sequence[int]) -> None:
        number = self._record.bookies[self._bookie.config.bookie_id]
        self._record.add(ledger_id, (kind, number, *entries))

    def add_entry(self, ledger_id: int, entry_id: int, entry: bytes, key: bytes, flags: int, done: Any) -> None:
        self.add_run(ledger_id, (entry_id,), [entry], key, flags, done)

    def add_run(
        self, ledger_id: int, entry_ids: Sequence[int], entries: list[bytes], key: bytes, flags: int, done: Any
    ) -> None:
        kind, entry_ids = "recovery add" if flags & FLAG_RECOVERY_ADD else "add", tuple(entry_ids)

        def answered(code: int, *more: Any) -> None:
            if code == 0:
                self._answered(kind, ledger_id, entry_ids)
            done(code, *more)

        if len(entry_ids) == 1:
            self._bookie.add_entry(ledger_id, entry_ids[0], entries[0], key, flags, answered)
        else:
            self._bookie.add_run(ledger_id, entry_ids, entries, key, flags, answered)

    def read_entry(self, ledger_id: int, entry_id: int, flags: int, key: bytes, done: Any) -> None:
        def answered(code: int, *more: Any) -> None:
            if code == 0 or code in EXPLICIT_NEGATIVES:
                self._answered("fence", ledger_id, ())
            done(code, *more)

        self._bookie.read_entry(ledger_id, entry_id, flags, key, answered if flags & FLAG_FENCE else done)


class LedgerRecord:
    """All ledgers of a run."""

    def __init__(self) -> None:
        self.bookies = Numbers()
        self.traces: dict[int, Trace] = {}
        self._gone: set[int] = set()
        self._writers: dict[int, str] = {}

    def add(self, ledger_id: int, event: Event) -> None:
        if ledger_id in self.traces and ledger_id not in self._gone and event != self.traces[ledger_id][-1]:
            self.traces[ledger_id].append(event)

    def stored(self, ledger_id: int, metadata: LedgerMetadata | None, process: str) -> None:
        if metadata is None:
            self._gone.add(ledger_id)
            return
        firsts = [segment.first_entry_id for segment in metadata.segments]
        ensembles = [[self.bookies[each] for each in segment.ensemble] for segment in metadata.segments]
        if ledger_id not in self.traces:
            self.traces[ledger_id] = [("create", metadata.write_quorum, metadata.ack_quorum, ensembles[0])]
            self._writers[ledger_id] = process
        else:
            own = process == self._writers[ledger_id]
            self.add(ledger_id, ("metadata", STATES[metadata.state], metadata.last_entry_id, firsts, ensembles, own))


@contextmanager
def recording_ledgers(record: LedgerRecord) -> Iterator[None]:
    with ExitStack() as stack:
        server, acked, changed = BookieServer, Checkers.acked, Checkers._changed

        def serve(bookie: Any, *more: Any) -> BookieServer:
            return server(RecordedBookie(bookie, record), *more)

        def ack(self: Checkers, ledger: LedgerHistory, entry_id: int, lac: int) -> None:
            record.add(ledger.ledger_id, ("ack", entry_id))
            acked(self, ledger, entry_id, lac)

        def change(self: Checkers, process: Any, operation: str, path: str) -> None:
            changed(self, process, operation, path)
            number = path.rpartition("/L")[2]
            if path.startswith("/ledgers/") and "underreplication" not in path and number.isdigit():
                ledger_id = int("".join(path.removeprefix("/ledgers/").replace("/L", "/").split("/")))
                record.stored(ledger_id, self.metadata(ledger_id), process.name)

        patch_attribute(stack, nodes, "BookieServer", serve)
        patch_attribute(stack, Checkers, "acked", ack)
        patch_attribute(stack, Checkers, "_changed", change)
        yield


def ledgers_of(seed: str, chosen: Scenario | None = None) -> dict[int, Trace]:
    """The traces of the ledgers that a seed's writers made, by ledger id."""
    record = LedgerRecord()
    with recording_ledgers(record), World(seed) as world:
        run = Run(world, chosen or scenario(seed))
        world.run(run.main(), RUN_LIMIT_S)
    return {ledger_id: trace for ledger_id, trace in record.traces.items() if ledger_id in run.history.ledgers}


def ledgers_of_script(name: str) -> list[Trace]:
    """The traces of a script's ledgers, as far as it comes."""
    record = LedgerRecord()
    with recording_ledgers(record), suppress(AssertionError):
        run_schedule(*SCHEDULES[name])
    return list(record.traces.values())


# ---- Bundles


class BundleRecord:
    """One run of brokers."""

    def __init__(self) -> None:
        self.brokers, self.bundles = Numbers(), Numbers()
        self.trace: Trace = []
        self._owned: dict[str, int] = {}
        self._sessions: dict[int, str] = {}

    def changed(self, service: MetadataService, process: str, path: str) -> None:
        bundle = BundleName.of_path(path)
        if bundle is None:
            return
        node = run_now(service.eyes.get(path))
        number, broker = self.bundles[path], self.brokers[process]
        if node is None:  # a broker that is started again deletes what its former process held
            self.trace.append(("release", number, self._owned.pop(path, broker)))
            return
        kind = "acquire" if path not in self._owned else "stay"
        self._owned[path] = broker
        self.trace.append(("leave" if parse_owner(node.value, node.owner).leaving else kind, number, broker))

    def began(self, session_id: int, process: str) -> None:
        self._sessions[session_id] = process

    def ended(self, session_id: int) -> None:
        process = self._sessions.pop(session_id, "")
        if process.startswith("broker"):
            number = self.brokers[process]
            self._owned = {path: owner for path, owner in self._owned.items() if owner != number}
            self.trace.append(("session ends", number))

    def delivered(self, process: str, topic: Any) -> None:
        broker = self.brokers[process]
        for path in self.bundles:
            bundle = BundleName.of_path(path)
            if bundle is not None and in_bundle(topic, bundle):
                event = ("deliver", self.bundles[path], broker)
                if not self.trace or self.trace[-1] != event:
                    self.trace.append(event)


@contextmanager
def recording_bundles(record: BundleRecord, world: World) -> Iterator[None]:
    with ExitStack() as stack:
        end, opened = world.metadata.tree.end, SimMetadataStore._open
        deliver, deliver_run = SessionConsumerChannel.deliver, SessionConsumerChannel.deliver_run

        def ending(session_id: int) -> None:
            if world.metadata.tree.is_alive(session_id):
                record.ended(session_id)
            end(session_id)

        def opening(self: Any) -> Any:
            session = opened(self)
            record.began(session.session_id, self._process.name)
            return session

        def note(channel: Any) -> None:
            topic = channel._session.consumer_topics.get(channel._consumer_id)
            if topic is not None and PROCESS.get().name.startswith("broker"):  # not what the world itself set off
                record.delivered(PROCESS.get().name, topic.name)

        def delivering(self: Any, *words: Any) -> None:
            note(self)
            deliver(self, *words)

        def delivering_run(self: Any, entries: Any) -> None:
            note(self)
            deliver_run(self, entries)

        changed = Trims.changed

        def change(self: Trims, process: Any, operation: str, path: str) -> None:
            record.changed(world.metadata, process.name, path)
            changed(self, process, operation, path)

        patch_attribute(stack, Trims, "changed", change)
        patch_attribute(stack, world.metadata.tree, "end", ending)
        patch_attribute(stack, SimMetadataStore, "_open", opening)
        patch_attribute(stack, SessionConsumerChannel, "deliver", delivering)
        patch_attribute(stack, SessionConsumerChannel, "deliver_run", delivering_run)
        yield


def bundles_of(seed: str, chosen: MessagingScenario | None = None) -> Trace:
    """The trace of a seed's brokers. Without the fault that ends a session before its time: no lease can be kept against that."""
    configuration = chosen or messaging_scenario(seed)
    configuration = replace(
        configuration, faults=tuple(fault for fault in configuration.faults if fault != "session expiry")
    )
    record = BundleRecord()
    with World(f"{seed}/messaging") as world, recording_bundles(record, world):
        run = MessagingRun(world, configuration)
        world.run(run.main(), RUN_LIMIT_S)
    return record.trace
