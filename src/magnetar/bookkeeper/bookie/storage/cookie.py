"""The cookie: which bookie, with which directories, of which cluster wrote here (BookKeeper bookie/Cookie, format 5).

A bookie that lost a directory but kept its name would answer "no such entry" about acknowledged entries, and a recovery would believe
it. So a new bookie stamps all its directories (and the metadata store), and one that finds anything else than that refuses to start.

Identity is the bookie id, the cluster's instance id, and an id that is drawn when the directories are made. That one stands in a comment of
the text, which BookKeeper's parser passes over. The paths are what BookKeeper expects there; they say where the directories were at the
last start and decide nothing: directories may be moved, linked, restored and mounted elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from magnetar.bookkeeper.bookie.storage.disk import Disk, read_file, write_file
from magnetar.bookkeeper.errors import CookieError

FILE_NAME: Final = "VERSION"
_FORMAT: Final = "5"
_BYTES_MAX: Final = 64 * 1024
_INDEX_PREFIX: Final = "index."
"""Names of index files begin so."""

_FIELD = re.compile(r'(\w+): "((?:[^"\\]|\\.)*)"')
_COMMENT = re.compile(r"# directories: (\S+)(?: (\S+))?")


class CookieStore(Protocol):
    """Cookies in the metadata store, by bookie id."""

    @property
    def adopts_unmarked(self) -> bool:
        """Directories with data of an older release, which did not tell this store, are taken over."""
        ...

    async def read(self, bookie_id: str) -> bytes | None: ...

    async def write(self, bookie_id: str, cookie: bytes, replaced: bytes | None = None) -> None:
        """Put it in the place of `replaced`; None: it must not exist yet. Raises BadVersionError."""
        ...


@dataclass(frozen=True, slots=True)
class Cookie:
    """One bookie's identity. `directories_id`: of the directories, empty in cookies of older releases and of BookKeeper."""

    bookie_id: str
    journal_dir: str
    ledger_dir: str
    instance_id: str
    directories_id: str = ""

    def pack(self, part: str = "") -> bytes:
        """The text; `part` says which of the directories it lies in."""
        lines = [_FORMAT]
        if self.directories_id:
            lines.append(f"# directories: {self.directories_id} {part}".rstrip())
        lines += [
            f"bookieHost: {_quoted(self.bookie_id)}",
            f"journalDir: {_quoted(self.journal_dir)}",
            f"ledgerDirs: {_quoted(f'1{chr(9)}{self.ledger_dir}')}",
        ]
        if self.instance_id:
            lines.append(f"instanceId: {_quoted(self.instance_id)}")
        return ("\n".join(lines) + "\n").encode()


class Stamp(NamedTuple):
    """What a cookie says of an identity. `part`: `journal` or `ledgers`, empty where it does not say."""

    bookie_id: str
    instance_id: str
    directories_id: str
    part: str


class Found(NamedTuple):
    """What the directories say: `stamped`: all carry a cookie of this bookie; `created`: a start got as far as making an index;
    `has_data`: there is more than that; `directories_id`: empty when none of them has one; `current`: all cookies are as they are
    written today."""

    stamped: bool
    created: bool
    has_data: bool
    directories_id: str = ""
    current: bool = True


def parse(cookie: bytes) -> Stamp | None:
    """None for what is not a complete cookie."""
    text = cookie.decode(errors="replace")
    fields = dict(_FIELD.findall(text))
    if not text.startswith(_FORMAT + "\n") or not text.endswith("\n") or "ledgerDirs" not in fields:
        return None
    comment = _COMMENT.search(text)
    names = (comment[1], comment[2] or "") if comment is not None else ("", "")
    return Stamp(_unquoted(fields.get("bookieHost", "")), _unquoted(fields.get("instanceId", "")), *names)


def check_directories(disk: Disk, cookie: Cookie, directories: Mapping[str, str]) -> Found:
    """`directories`: path by part. Raises CookieError unless all of them carry cookies of this bookie's one set of directories, or none of
    them holds any data. Blocks."""
    found = {part: read_file(disk, os.path.join(path, FILE_NAME), _BYTES_MAX) for part, path in directories.items()}
    ids: set[str] = set()
    for part, content in found.items():
        if content is not None:
            ids.add(_checked(content, cookie, part, directories[part]).directories_id)
    ids.discard("")  # a crash while an older release's cookies were marked
    if len(ids) > 1:
        raise CookieError(
            f"{' and '.join(directories.values())} do not belong together: each is of another first start of bookie {cookie.bookie_id}. "
            "Bring back the directory that belongs to the other one; nothing was changed"
        )
    missing = [directories[part] for part, content in found.items() if content is None]
    names = [name for path in directories.values() for name in _content(disk, path)]
    if names and missing:  # a crash while stamping leaves directories without data, which are stamped again
        raise CookieError(
            f"{missing[0]} has no VERSION file but the bookie has data: its data is incomplete and it could deny entries that "
            "it has acknowledged; bring the directory back, or remove all of the bookie's directories to begin anew"
        )
    has_data = any(not name.startswith(_INDEX_PREFIX) for name in names)
    directories_id = next(iter(ids), "")
    marked = replace(cookie, directories_id=directories_id)
    current = bool(ids) and all(content == marked.pack(part) for part, content in found.items())
    return Found(not missing, bool(names), has_data, directories_id, current)


def _checked(content: bytes, cookie: Cookie, part: str, path: str) -> Stamp:
    stamp = parse(content)
    if stamp is None or (stamp.bookie_id, stamp.instance_id) != (cookie.bookie_id, cookie.instance_id):
        raise CookieError(
            f"{path} belongs to another bookie; it says:\n{content.decode(errors='replace')}and this bookie is:\n"
            f"{cookie.pack().decode()}start it with the bookie id and the metadata store it was created with, or with its own directories"
        )
    if stamp.part and stamp.part != part:
        raise CookieError(f"{path} is this bookie's directory of its {stamp.part}, not of its {part}; exchange the two")
    return stamp


def stamp_directories(disk: Disk, cookie: Cookie, directories: Mapping[str, str]) -> None:
    """Make the directories this bookie's. Blocks."""
    for part, path in directories.items():
        write_file(disk, os.path.join(path, FILE_NAME), cookie.pack(part))


async def check_store(store: CookieStore, cookie: Cookie, found: Found) -> tuple[bool, bytes | None]:
    """Compare with the metadata store: (it has to be told, the cookie it has) once the directories are stamped and the index is made.

    In that order a bookie that the store knows has an index: without one its directories were emptied. Raises CookieError.
    """
    known = await store.read(cookie.bookie_id)
    if known is None:
        if found.has_data and not (store.adopts_unmarked and not found.directories_id):
            raise CookieError(
                f"bookie {cookie.bookie_id} has data but the metadata store does not know it: is this the right metadata store? "
                "Bring the two together that belong together; nothing was changed"
            )
        return True, None
    if not found.stamped or not found.created:
        raise CookieError(
            f"the metadata store knows bookie {cookie.bookie_id} but its directories are empty: its entries are lost here. "
            "Bring the directories back, or let the other bookies re-replicate and delete this bookie's cookie"
        )
    stamp = parse(known)
    if (
        stamp is None
        or (stamp.bookie_id, stamp.instance_id) != (cookie.bookie_id, cookie.instance_id)
        or (stamp.directories_id and stamp.directories_id != found.directories_id)
    ):
        raise CookieError(
            f"the metadata store knows bookie {cookie.bookie_id} with other directories: those here are of another first start, or of "
            "another cluster. Bring its own directories back, or let the other bookies re-replicate and delete this bookie's cookie"
        )
    return known != cookie.pack(), known


def _content(disk: Disk, path: str) -> list[str]:
    return [name for name in disk.list(path) if name not in (FILE_NAME, FILE_NAME + ".tmp")]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t").replace("\n", "\\n")
    return f'"{escaped}"'


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"t": "\t", "n": "\n"}.get(found[1], found[1]), text)
