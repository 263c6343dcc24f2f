"""Sinks after each epoch: what the manifest has committed is sent, how far that went is part of the next manifest."""

from __future__ import annotations

from typing import Any

from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest
from magnetar.pipeline.views.lowering.program import Program
from magnetar.pipeline.views.sink.sinks import SinkDelivery, changelog_name, new_position, write_snapshot


class Delivery:
    """The sinks of one driver. `positions`: how far they are, which may be further than the last manifest says."""

    def __init__(self, pipeline: str, files: StateFiles, program: Program) -> None:
        self._program = program
        self._files = files
        self._delivery = SinkDelivery(pipeline, files)
        self.positions: dict[str, Any] = {}
        self.snapshots: dict[str, Any] = {}
        """What new sinks begin with, by the names that a manifest's `changelogs` are to have it under; after `begin`."""

    def begin(self, claimed: Manifest) -> dict[str, Any]:
        """The positions for the driver's first manifest: new sinks are sent the rows there are and what changes from now on, dropped
        ones are forgotten."""
        tables = {plan.name: plan.table.table_id for plan in self._program.plans}
        for sink in self._program.sinks:
            position = claimed.sinks.get(sink.name)
            if position is None:
                state = claimed.tables.get(tables[sink.view])
                if sink.snapshot and state is not None and state.runs:
                    name = changelog_name(sink.name)
                    self.snapshots[name] = write_snapshot(self._files, state, claimed.epoch)
                position = new_position(claimed.epoch, snapshot=changelog_name(sink.name) in self.snapshots)
            self.positions[sink.name] = position
        return self.positions

    def deliver(self, manifest: Manifest) -> None:
        """All that is committed and was not sent. Raises SinkError, WriteError, DamagedStateError."""
        if self._program.sinks:
            self.positions = self._delivery.deliver(self._program.sinks, manifest.changelogs, self.positions)

    def is_ahead(self, manifest: Manifest) -> bool:
        """Whether the manifest does not know yet what was sent."""
        return self.positions != dict(manifest.sinks)

    def close(self) -> None:
        self._delivery.close()
