"""The cookie: which bookie, with which directories, of which cluster wrote here (BookKeeper bookie/Cookie, format 5).

A bookie that lost a directory but kept its name would answer "no such entry" about acknowledged entries, and a recovery would believe
it. So a new bookie stamps all its directories (and the metadata store), and one that finds anything else than that refuses to start.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from magnetar.bookkeeper.bookie.disk import Disk, read_file, write_file
from magnetar.bookkeeper.errors import CookieError

FILE_NAME: Final = "VERSION"
_FORMAT: Final = "5"
_BYTES_MAX: Final = 64 * 1024
_INDEX_PREFIX: Final = "index."
"""Names of index files begin so."""


class CookieStore(Protocol):
    """Cookies in the metadata store, by bookie id."""

    async def read(self, bookie_id: str) -> bytes | None: ...

    async def write(self, bookie_id: str, cookie: bytes) -> None:
        """Must not exist yet."""
        ...


@dataclass(frozen=True, slots=True)
class Cookie:
    """One bookie's identity."""

    bookie_id: str
    journal_dir: str
    ledger_dir: str
    instance_id: str

    def pack(self) -> bytes:
        lines = [
            _FORMAT,
            f"bookieHost: {_quoted(self.bookie_id)}",
            f"journalDir: {_quoted(self.journal_dir)}",
            f"ledgerDirs: {_quoted(f'1{chr(9)}{self.ledger_dir}')}",
        ]
        if self.instance_id:
            lines.append(f"instanceId: {_quoted(self.instance_id)}")
        return ("\n".join(lines) + "\n").encode()


class Found(NamedTuple):
    """What the directories say: `stamped`: all carry the cookie; `created`: a start got as far as making an index; `has_data`: there is
    more than that."""

    stamped: bool
    created: bool
    has_data: bool


def check_directories(disk: Disk, cookie: Cookie, directories: Sequence[str]) -> Found:
    """Raises CookieError unless all directories carry this cookie, or none of them holds any data. Blocks."""
    expected = cookie.pack()
    found = {path: read_file(disk, os.path.join(path, FILE_NAME), _BYTES_MAX) for path in directories}
    for path, stamp in found.items():
        if stamp is not None and stamp != expected:
            raise CookieError(
                f"{path} belongs to another bookie; it says:\n{stamp.decode(errors='replace')}and this bookie is:\n"
                f"{expected.decode()}start it with the bookie id, directories and instance id it was created with"
            )
    missing = [path for path in directories if found[path] is None]
    content = [name for path in directories for name in _content(disk, path)]
    if content and missing:  # a crash while stamping leaves directories without data, which are stamped again
        raise CookieError(
            f"{missing[0]} has no VERSION file but the bookie has data: its data is incomplete and it could deny entries that "
            "it has acknowledged; bring the directory back, or remove all of the bookie's directories to begin anew"
        )
    has_data = any(not name.startswith(_INDEX_PREFIX) for name in content)
    return Found(not missing, bool(content), has_data)


def stamp_directories(disk: Disk, cookie: Cookie, directories: Sequence[str]) -> None:
    """Make the directories this bookie's. Blocks."""
    for path in directories:
        write_file(disk, os.path.join(path, FILE_NAME), cookie.pack())


async def check_store(store: CookieStore, cookie: Cookie, found: Found) -> bool:
    """Compare with the metadata store; True: it has to be told, once the directories are stamped and the index is made.

    In that order a bookie that the store knows has an index: without one its directories were emptied. Raises CookieError.
    """
    known = await store.read(cookie.bookie_id)
    if known is None:
        if found.has_data:
            raise CookieError(
                f"bookie {cookie.bookie_id} has data but the metadata store does not know it: is this the right metadata store?"
            )
        return True
    if not found.stamped or not found.created:
        raise CookieError(
            f"the metadata store knows bookie {cookie.bookie_id} but its directories are empty: its entries are lost here. "
            "Bring the directories back, or let the other bookies re-replicate and delete this bookie's cookie"
        )
    if known != cookie.pack():
        raise CookieError(
            f"the metadata store knows bookie {cookie.bookie_id} with other directories or another instance id"
        )
    return False


def _content(disk: Disk, path: str) -> list[str]:
    return [name for name in disk.list(path) if name not in (FILE_NAME, FILE_NAME + ".tmp")]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t").replace("\n", "\\n")
    return f'"{escaped}"'
