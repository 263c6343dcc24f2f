"""A pipeline's directory with committed changelogs and one sink, and a driver that delivers them: a process to be killed.

`python -m tests.support.sink_harness ROOT SERVICE_URL ADMIN_URL TOPIC FORM` prints a line when it begins and one when all is delivered.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from magnetar.base.clock import SystemClock
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.statements import CreateSink
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore
from magnetar.pipeline.state.table import as_frame
from magnetar.pipeline.views.changelog_files import write_changes
from magnetar.pipeline.views.sink.options import Sink, sink_of
from magnetar.pipeline.views.sink.sinks import SinkDelivery, new_position, undelivered

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])


def sink(service_url: str, admin_url: str, topic: str, form: str, more: str = "", append_only: bool = False) -> Sink:
    """Of the view `v`, whose key is `k`."""
    where = f"connector = 'pulsar', topic = '{topic}', service.url = '{service_url}', admin.url = '{admin_url}'{more}"
    statement = parse_one(f"CREATE SINK out FROM v WITH ({where}) {form}")
    assert isinstance(statement, CreateSink)
    return sink_of(statement, SCHEMA, ("k",), append_only)


class SinkHarness:
    """Changelogs are committed by hand, as an epoch of units would."""

    def __init__(self, root: str) -> None:
        self.files = StateFiles(root)
        self.store = ManifestStore(self.files, SystemClock())

    def create(self) -> None:
        self.store.claim(Manifest(0, 0, 0, -1, "", sinks={"out": new_position(0)}))

    def epoch(self, changes_by_unit: list[list[tuple[int, int, str]]]) -> None:
        """`(_change, k, v)` of each unit."""
        manifest = self.store.latest()
        assert manifest is not None
        files = []
        for unit, changes in enumerate(changes_by_unit):
            columns = list(zip(*changes, strict=True)) or [(), (), ()]
            kinds, keys, values = columns
            at = pa.array([1_700_000_000_000_000 + key for key in keys], pa.timestamp("us", tz="UTC"))
            table = pa.table(
                {"_change": pa.array(kinds, pa.int8()), "k": pa.array(keys, pa.int64()), "v": list(values), "at": at},
                pa.schema([("_change", pa.int8()), *SCHEMA]),
            )
            file = write_changes(self.files, manifest.epoch + 1, str(unit), as_frame(table), SCHEMA, durable=True)
            files.append(file.describe())
        known = [*manifest.changelogs.get("v", []), {"epoch": manifest.epoch + 1, "files": files}]
        self.store.commit(manifest.next(epoch=manifest.epoch + 1, changelogs={"v": known}))

    def deliver(self, to: Sink, commit: bool = True) -> dict[str, str]:
        """The warnings. Without the commit a driver has died between the topic and the manifest."""
        manifest = self.store.latest()
        assert manifest is not None
        with SinkDelivery("harness", self.files) as delivery:
            positions = delivery.deliver([to], manifest.changelogs, manifest.sinks)
            if commit:
                left = undelivered(manifest.changelogs, [to], positions)
                self.store.commit(manifest.next(sinks=positions, changelogs=left))
            return delivery.warnings


def main(root: str, service_url: str, admin_url: str, topic: str, form: str) -> None:
    print("begin", flush=True)
    SinkHarness(root).deliver(sink(service_url, admin_url, topic, form))
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
