"""The manifest of an epoch: everything that a pipeline is at that moment, committed by creating one file.

Source offsets, runs of all tables, watermarks and how far sinks have delivered change together or not at all. Manifests are numbered;
committing is creating the next number, which fails when somebody else was faster. A driver that takes a pipeline over commits a
manifest with a higher term and the same content: whatever the old driver tries afterwards finds its number taken (fencing).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from magnetar.base.checksum import crc32c
from magnetar.base.clock import Clock
from magnetar.pipeline.errors import DamagedStateError, DriverFencedError, UnknownEpochError
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.run import RunInfo
from magnetar.pipeline.state.table import StateTable

FORMAT: Final = 1
DIRECTORY: Final = "manifests"
_NAME: Final = re.compile(r"MANIFEST-(\d{20})\.json")


@dataclass(frozen=True)
class TableState:
    """A table and the runs that hold it."""

    table: StateTable
    runs: tuple[RunInfo, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """`number` grows by one a commit, `epoch` by one a batch of changes; `term` says which driver wrote it.

    `batch_id`: the streaming engine's number of the batch, so that a repeated one is recognised; -1 before the first. `mapping`: the
    vnode mapping as text, which storage never looks at. `sources`, `watermarks_us`, `sinks`, `views`, `changelogs`: plain values by
    name, owned by those who put them there.
    """

    number: int
    term: int
    epoch: int
    batch_id: int
    mapping: str
    tables: Mapping[int, TableState] = field(default_factory=dict)
    sources: Mapping[str, Any] = field(default_factory=dict)
    watermarks_us: Mapping[str, int] = field(default_factory=dict)
    sinks: Mapping[str, Any] = field(default_factory=dict)
    views: Mapping[str, Any] = field(default_factory=dict)
    changelogs: Mapping[str, Any] = field(default_factory=dict)
    created_ms: int = 0

    def next(self, **changes: Any) -> Manifest:
        """The manifest after this one."""
        return replace(self, number=self.number + 1, **changes)

    def run_paths(self) -> set[str]:
        """Of every run it names."""
        return {run.path for state in self.tables.values() for run in state.runs}

    def to_bytes(self) -> bytes:
        document = {
            "format": FORMAT,
            **{name: getattr(self, name) for name in ("number", "term", "epoch", "batch_id", "mapping", "created_ms")},
            **{
                name: dict(getattr(self, name)) for name in ("sources", "watermarks_us", "sinks", "views", "changelogs")
            },
            "tables": [
                {**state.table.describe(), "runs": [run.describe() for run in state.runs]}
                for _, state in sorted(self.tables.items())
            ],
        }
        body = json.dumps(document, separators=(",", ":"), sort_keys=True)
        return f'{{"crc32c":{crc32c(body.encode())},"manifest":{body}}}\n'.encode()

    @staticmethod
    def from_bytes(name: str, data: bytes) -> Manifest:
        """Raises DamagedStateError for anything that `to_bytes` did not write."""
        found = re.fullmatch(rb'\{"crc32c":(\d+),"manifest":(.*)\}\n', data, re.DOTALL)
        if found is None or crc32c(found[2]) != int(found[1]):
            raise DamagedStateError(f"manifest {name} does not match its checksum")
        document = json.loads(found[2])
        if document.pop("format") != FORMAT:
            raise DamagedStateError(f"manifest {name} is of another format; this version reads {FORMAT}")
        tables = {}
        for description in document.pop("tables"):
            runs = tuple(RunInfo.from_description(run) for run in description.pop("runs"))
            tables[description["table_id"]] = TableState(StateTable.from_description(description), runs)
        return Manifest(tables=tables, **document)


class ManifestStore:
    """The manifests of one pipeline's directory."""

    def __init__(self, files: StateFiles, clock: Clock) -> None:
        self._files = files
        self._clock = clock

    def numbers(self) -> list[int]:
        """Of all manifests that are there, ascending."""
        return [int(found[1]) for name in self._files.names(DIRECTORY) if (found := _NAME.fullmatch(name))]

    def has(self, number: int) -> bool:
        """Whether this one is there: much cheaper than `numbers`."""
        return self._files.exists(file_name(number))

    def latest(self) -> Manifest | None:
        """None before the first commit. Raises DamagedStateError."""
        for _ in range(_COLLECTED_MEANWHILE_MAX):
            numbers = self.numbers()
            if not numbers:
                return None
            try:
                return self.read(numbers[-1])
            except UnknownEpochError:
                continue  # listed, and then collected: much newer ones are there now
        raise UnknownEpochError("manifests are collected faster than they can be read; keep more of them")

    def read(self, number: int) -> Manifest:
        """Raises UnknownEpochError, DamagedStateError."""
        name = file_name(number)
        try:
            return Manifest.from_bytes(name, self._files.read(name))
        except FileNotFoundError:
            raise UnknownEpochError(f"manifest {number} is not there; it was collected, or never was") from None

    def at_epoch(self, epoch: int) -> Manifest:
        """The last manifest of an epoch. Raises UnknownEpochError, DamagedStateError."""
        numbers = self.numbers()
        low, high = 0, len(numbers)
        while low < high:  # epochs never fall as numbers rise
            middle = (low + high) // 2
            if self.read(numbers[middle]).epoch <= epoch:
                low = middle + 1
            else:
                high = middle
        manifest = self.read(numbers[low - 1]) if low else None
        if manifest is None or manifest.epoch != epoch:
            kept = f"{self.read(numbers[0]).epoch} to {self.read(numbers[-1]).epoch}" if numbers else "none"
            raise UnknownEpochError(f"epoch {epoch} is not kept; there are: {kept}")
        return manifest

    def claim(self, first: Manifest) -> Manifest:
        """Take the pipeline over: from now on no earlier driver can commit. `first`: the manifest of a new pipeline."""
        while True:
            latest = self.latest()
            manifest = replace(first, number=0, term=1) if latest is None else latest.next(term=latest.term + 1)
            try:
                return self._create(manifest)
            except FileExistsError:
                continue  # somebody else committed meanwhile: look again

    def commit(self, manifest: Manifest) -> Manifest:
        """Make the manifest the latest one. Raises DriverFencedError when its number is taken, whoever took it."""
        try:
            return self._create(manifest)
        except FileExistsError:
            latest = self.latest()
            term = latest.term if latest is not None else 0
            raise DriverFencedError(
                f"manifest {manifest.number} of term {manifest.term} was committed by another driver (term {term}); this one stops"
            ) from None

    def remove(self, number: int) -> None:
        self._files.remove(file_name(number))

    def _create(self, manifest: Manifest) -> Manifest:
        stamped = replace(manifest, created_ms=self._clock.now_ms())
        self._files.create(file_name(manifest.number), stamped.to_bytes())
        return stamped


_COLLECTED_MEANWHILE_MAX: Final = 10
"""Times that the newest manifest may vanish between listing and reading; above it the reader gives up."""


def file_name(number: int) -> str:
    return f"{DIRECTORY}/MANIFEST-{number:020d}.json"
