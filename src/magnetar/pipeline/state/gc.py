"""Which files may go: manifests beyond those kept, runs that no kept manifest names, leftovers of attempts that came to nothing.

Readers pin the manifest they read: a pin is a file with an end, so a reader that died holds nothing for ever. On doubt a file stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from magnetar.base.clock import Clock
from magnetar.pipeline.state.files import TEMPORARY, StateFiles
from magnetar.pipeline.state.manifest import DIRECTORY, Manifest, ManifestStore

MANIFESTS_KEPT: Final = 10
"""Older epochs that can be read; a batch scan that lasts longer pins its own."""

ORPHAN_AGE_S: Final = 3600.0
"""A file that no manifest names may belong to a task that is still running; after this time it does not."""

PIN_TIMEOUT_S: Final = 3600.0

PINS: Final = "pins"

CHANGELOGS: Final = "changelogs"
"""Directory of the changes of views, and of the stages between them."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection removed."""

    manifests: int
    files: int


def pin(files: StateFiles, clock: Clock, manifest: Manifest, timeout_s: float = PIN_TIMEOUT_S) -> str:
    """Keep a manifest and its runs for a while; the name to `unpin`."""
    name = f"{PINS}/{manifest.number:020d}-{uuid4().hex}.json"
    files.create(name, json.dumps({"until_ms": clock.now_ms() + round(timeout_s * 1000)}).encode())
    return name


def unpin(files: StateFiles, name: str) -> None:
    files.remove(name)


def collect(
    files: StateFiles, clock: Clock, kept: int = MANIFESTS_KEPT, orphan_age_s: float = ORPHAN_AGE_S
) -> Collected:
    """Remove what is not needed. Raises DamagedStateError, before anything is removed, when a kept manifest cannot be read."""
    store = ManifestStore(files, clock)
    numbers = store.numbers()
    if not numbers:
        return Collected(0, 0)
    keep = set(numbers[-kept:]) | pinned(files, clock)
    manifests = [store.read(number) for number in numbers if number in keep]
    directories = {CHANGELOGS, *_directories(manifests)}
    named = set().union(*(manifest.run_paths() for manifest in manifests), *(changelog_paths(m) for m in manifests))
    dropped = [number for number in numbers if number not in keep]
    known: set[str] = set()
    for number in dropped:
        manifest = store.read(number)
        known |= manifest.run_paths() | changelog_paths(manifest)
        directories |= _directories([manifest])
    removed = 0
    for path in _removable(files, clock, directories, named, known, orphan_age_s):
        files.remove(path)
        removed += 1
    for number in dropped:  # last: until then they say which runs were once committed
        store.remove(number)
    return Collected(len(dropped), removed)


def changelog_paths(manifest: Manifest) -> set[str]:
    """Files of changes that sinks may still have to deliver."""
    return {file["path"] for entries in manifest.changelogs.values() for entry in entries for file in entry["files"]}


def pinned(files: StateFiles, clock: Clock) -> set[int]:
    """Numbers of the manifests that somebody reads; pins that have run out are removed."""
    held = set()
    for name in files.names(PINS):
        try:
            until_ms = json.loads(files.read(f"{PINS}/{name}"))["until_ms"]
        except FileNotFoundError:
            continue
        if until_ms > clock.now_ms():
            held.add(int(name.partition("-")[0]))
        else:
            files.remove(f"{PINS}/{name}")
    return held


def _directories(manifests: Iterable[Manifest]) -> set[str]:
    return {state.table.directory for manifest in manifests for state in manifest.tables.values()}


def _removable(
    files: StateFiles, clock: Clock, directories: Iterable[str], named: set[str], known: set[str], orphan_age_s: float
) -> Iterable[str]:
    now_s = clock.now_ms() / 1000
    for directory in sorted(directories):
        for name, changed_s in files.listed(directory):
            path = f"{directory}/{name}"
            if path in named:
                continue
            old = changed_s is not None and now_s - changed_s > orphan_age_s
            if path in known or old:
                yield path
    for directory in (DIRECTORY, PINS):
        for name, changed_s in files.listed(directory):
            if name.startswith(TEMPORARY) and changed_s is not None and now_s - changed_s > orphan_age_s:
                yield f"{directory}/{name}"
