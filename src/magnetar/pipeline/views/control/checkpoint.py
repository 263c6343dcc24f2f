"""The log of the streaming query that reads a pipeline's sources without low latency: where each of its batches ends.

It is of account for one driver only: each begins a new generation where the manifest stands.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from magnetar.pipeline.errors import PipelineError

GENERATION: Final = "generation"
"""In a manifest's `views`: the number of the checkpoint that its `batch_id` belongs to."""

_VERSION: Final = "v1"
_NOTHING: Final = "-"


class Checkpoint:
    """One generation. `sources`: the names in the order in which they were joined into the query."""

    def __init__(self, directory: Path, generation: int, sources: Sequence[str]) -> None:
        self._sources = tuple(sources)
        self.path = directory / str(generation)

    def create(self) -> None:
        """An empty one; those of earlier drivers go."""
        shutil.rmtree(self.path.parent, ignore_errors=True)
        self.path.mkdir(parents=True)

    def offsets(self, batch_id: int) -> dict[str, Any]:
        """Where the batch ends, by source; those that have no offset yet are left out. Raises PipelineError."""
        try:
            text = (self.path / "offsets" / str(batch_id)).read_text(encoding="utf-8")
        except OSError as error:
            raise PipelineError(f"the log of batch {batch_id} cannot be read: {error}") from error
        return parse_offsets(text, self._sources)


def parse_offsets(text: str, sources: Sequence[str]) -> dict[str, Any]:
    """Spark's offset log: a version, the batch's facts, and a line for each source. Raises PipelineError."""
    lines = text.splitlines()
    if len(lines) != len(sources) + 2 or lines[0] != _VERSION:
        raise PipelineError(f"not an offset log of Spark's version 1 with {len(sources)} sources: {text[:200]!r}")
    return {name: json.loads(line) for name, line in zip(sources, lines[2:], strict=True) if line != _NOTHING}
