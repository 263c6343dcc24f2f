"""What a project has made so far, below its storage: a directory for each dataset, and one document that says which of them counts.

    STORAGE/magnetar/datasets.json
    STORAGE/magnetar/tables/DATABASE.NAME/VERSION/part-N/...    files of Spark: what one refresh, or one batch of a stream, brought
    STORAGE/magnetar/tables/DATABASE.NAME/VERSION/groups/...    an aggregate that is kept by the engine
    STORAGE/magnetar/tables/DATABASE.NAME/VERSION/results/N/... what its query makes of it, where that is more than the groups
    STORAGE/magnetar/checkpoints/DATABASE.NAME/VERSION/FLOW     of streams

A part is written under a name that Spark does not read, and gets its own by one rename. A version is left behind when a dataset is computed
anew; it goes with the next one.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from magnetar.pipeline.declarative.files import Listing
from magnetar.pipeline.declarative.project import ProjectError
from magnetar.pipeline.views.scan.session_catalog import VIEW_PROVIDER, TableEntry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

How: TypeAlias = Literal["groups", "rows", "full", "stream"]
"""How a dataset is brought up to date: an aggregate kept by the engine, rows that are only added, computed anew, by streaming queries."""

DOCUMENT: Final = "datasets.json"
_VERSIONS_KEPT: Final = 2
FORMATS: Final = ("parquet", "orc", "json", "csv", "avro")
"""Of tables whose files are kept here."""


@dataclass
class Stored:
    """One dataset as it was last committed. `schema`: of Spark, as JSON. `parts`: the number of the next part. `provider`: by which Spark
    reads the table; `read`: the files from which its rows come, where they are only added."""

    name: str
    how: How
    version: int
    schema: str
    provider: str
    fingerprint: str = ""
    parts: int = 0
    read: Listing = field(default_factory=dict)
    comment: str | None = None


class Storage:
    """Of one project. Not for two processes at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root / "magnetar"
        self._path = self.root / DOCUMENT
        self.datasets: dict[str, Stored] = {}
        if self._path.exists():
            document = json.loads(self._path.read_text(encoding="utf-8"))
            self.datasets = {name: Stored(**about) for name, about in document["datasets"].items()}

    def commit(self, stored: Stored) -> None:
        """From now on this counts; versions that nobody needs any more go."""
        self.datasets[stored.name] = stored
        self._write()
        self._collect(stored.name, stored.version)

    def forget(self, name: str) -> None:
        """A dataset that the project does not define any more; its files stay until somebody removes them."""
        if self.datasets.pop(name, None) is not None:
            self._write()

    def _write(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        document = {"datasets": {name: asdict(each) for name, each in self.datasets.items()}}
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)

    def directory(self, name: str, version: int) -> Path:
        return self.root / "tables" / name / str(version)

    def groups(self, name: str, version: int) -> Path:
        """Where an aggregate's state lies."""
        return self.directory(name, version) / "groups"

    def results(self, stored: Stored) -> Path:
        """Where what a query makes of its groups lies, where that is more than the groups."""
        return self.directory(stored.name, stored.version) / "results" / str(stored.parts)

    def checkpoint(self, name: str, version: int, flow: str) -> Path:
        return self.root / "checkpoints" / name / str(version) / flow

    def next_version(self, name: str) -> int:
        """One that nothing lies under."""
        parent = self.root / "tables" / name
        taken = [int(path.name) for path in parent.iterdir() if path.name.isdigit()] if parent.is_dir() else []
        known = self.datasets.get(name)
        return max([*taken, 0 if known is None else known.version]) + 1

    def write_part(self, directory: Path, part: str, frame: DataFrame, kind: str) -> None:
        """The rows as one part, in place of one of that name: all of them or none can be seen."""
        hidden, own = directory / f"_{part}", directory / f"part-{part}"
        frame.write.mode("overwrite").format(kind).save(str(hidden))
        if own.exists():
            shutil.rmtree(own)
        hidden.rename(own)

    def _collect(self, name: str, version: int) -> None:
        for parent in (self.root / "tables" / name, self.root / "checkpoints" / name):
            if parent.is_dir():
                for path in parent.iterdir():
                    if path.name.isdigit() and int(path.name) <= version - _VERSIONS_KEPT:
                        shutil.rmtree(path, ignore_errors=True)


def file_format(given: str | None, where: object) -> str:
    """Raises ProjectError for a format whose tables are not plain files."""
    name = (given or "parquet").lower()
    if name not in FORMATS:
        raise ProjectError(f"{where}: format {given!r} is not kept here; there are {', '.join(FORMATS)}")
    return name


def entry_of(storage: Storage, stored: Stored) -> TableEntry:
    """A stored dataset as a table of Spark's catalog; who reads the table later sees what was committed last."""
    database, name = stored.name.split(".", 1)
    owner = str(storage.root)
    if stored.provider == VIEW_PROVIDER:
        options = {"pipeline": str(storage.groups(stored.name, stored.version)), "view": name}
        return TableEntry(database, name, stored.provider, stored.schema, owner, None, options, stored.comment)
    location = storage.results(stored) if stored.how == "groups" else storage.directory(stored.name, stored.version)
    options = {"recursiveFileLookup": "true"}
    return TableEntry(database, name, stored.provider, stored.schema, owner, str(location), options, stored.comment)
