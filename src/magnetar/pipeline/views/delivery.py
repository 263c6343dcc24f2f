"""Sinks after each epoch: what the manifest has committed is sent, how far that went is part of the next manifest."""

from __future__ import annotations

from typing import Any

from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest
from magnetar.pipeline.views.program import Program
from magnetar.pipeline.views.sinks import SinkDelivery, new_position


class Delivery:
    """The sinks of one driver. `positions`: how far they are, which may be further than the last manifest says."""

    def __init__(self, pipeline: str, files: StateFiles, program: Program) -> None:
        self._program = program
        self._delivery = SinkDelivery(pipeline, files)
        self.positions: dict[str, Any] = {}

    def begin(self, claimed: Manifest) -> dict[str, Any]:
        """The positions for the driver's first manifest: new sinks are sent what changes from now on, dropped ones are forgotten."""
        self.positions = {
            sink.name: claimed.sinks.get(sink.name) or new_position(claimed.epoch) for sink in self._program.sinks
        }
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
