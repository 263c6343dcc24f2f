"""Cookies: a bookie starts on its own, complete directories only."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from google.protobuf import text_format

from magnetar.base.errors import MetadataError
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.storage.cookie import Cookie, check_directories, check_store
from magnetar.bookkeeper.bookie.storage.disk import OsDisk
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.errors import CookieError
from magnetar.wire.bookkeeper.DataFormats_pb2 import CookieFormat
from tests.unit.bookkeeper.bookie_helpers import add, read, small_config


class Store:
    """Cookies in memory."""

    def __init__(self, *, adopts_unmarked: bool = False) -> None:
        self.adopts_unmarked = adopts_unmarked
        self.cookies: dict[str, bytes] = {}

    async def read(self, bookie_id: str) -> bytes | None:
        return self.cookies.get(bookie_id)

    async def write(self, bookie_id: str, cookie: bytes, replaced: bytes | None = None) -> None:
        assert self.cookies.get(bookie_id) == replaced
        self.cookies[bookie_id] = cookie


async def start(config: BookieConfig, store: Store | None = None) -> None:
    async with Bookie(config, cookie_store=store) as bookie:
        assert await add(bookie, 1, 0) == ReturnCode.OK
        assert (await read(bookie, 1, 0))[0] == ReturnCode.OK


async def refused(config: BookieConfig, text: str, store: Store | None = None) -> None:
    with pytest.raises(CookieError, match=text):
        await start(config, store)


async def test_the_cookie_has_the_reference_form(tmp_path: Path) -> None:
    store = Store()
    await start(small_config(tmp_path, bookie_id="h:1", instance_id="i-1"), store)
    cookie = store.cookies["h:1"].decode()
    line = cookie.splitlines()[1]
    assert re.fullmatch(r"# directories: [0-9a-f-]{36}", line)
    expected = (
        f'5\n{line}\nbookieHost: "h:1"\njournalDir: "{tmp_path}/journal/current"\n'
        f'ledgerDirs: "1\\t{tmp_path}/ledgers/current"\ninstanceId: "i-1"\n'
    )
    assert store.cookies == {"h:1": expected.encode()}
    for part in ("journal", "ledgers"):
        assert (tmp_path / part / "current" / "VERSION").read_text() == expected.replace(line, f"{line} {part}")
    parsed = CookieFormat()
    text_format.Parse(cookie.partition("\n")[2], parsed)  # as BookKeeper reads it: the comment is passed over
    assert (parsed.bookieHost, parsed.instanceId) == ("h:1", "i-1")


async def test_a_restart_is_welcome(tmp_path: Path) -> None:
    store = Store()
    for _ in range(2):
        await start(small_config(tmp_path), store)


@pytest.mark.parametrize("part", ["journal", "ledgers"])
async def test_a_missing_directory_is_refused(tmp_path: Path, part: str) -> None:
    await start(small_config(tmp_path))
    shutil.rmtree(tmp_path / part)
    await refused(small_config(tmp_path), "incomplete")
    await refused(small_config(tmp_path), "incomplete")


@pytest.mark.parametrize("change", [{"bookie_id": "other:1"}, {"instance_id": "another"}])
async def test_another_identity_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    await start(small_config(tmp_path))
    await refused(small_config(tmp_path, **change), "belongs to another bookie")


async def test_an_empty_journal_in_place_of_the_old_one_is_refused(tmp_path: Path) -> None:
    await start(small_config(tmp_path))
    await refused(small_config(tmp_path, journal_dir=tmp_path / "elsewhere"), "incomplete")


async def test_a_wiped_bookie_is_refused(tmp_path: Path) -> None:
    store = Store()
    await start(small_config(tmp_path), store)
    shutil.rmtree(tmp_path)
    await refused(small_config(tmp_path), "its entries are lost here", store)


async def test_data_that_the_metadata_store_does_not_know_is_refused(tmp_path: Path) -> None:
    await start(small_config(tmp_path), Store())
    await refused(small_config(tmp_path), "does not know it", Store())


async def test_data_without_a_cookie_is_refused(tmp_path: Path) -> None:
    await start(small_config(tmp_path))
    for part in ("journal", "ledgers"):
        (tmp_path / part / "current" / "VERSION").unlink()
    await refused(small_config(tmp_path), "no VERSION file")


@pytest.mark.parametrize("stamped", [["journal"], ["journal", "ledgers"]])
async def test_a_crash_while_stamping_is_survived(tmp_path: Path, stamped: list[str]) -> None:
    await start(small_config(tmp_path), Store())
    for part in ("journal", "ledgers"):
        for path in (tmp_path / part / "current").iterdir():
            if path.name != "VERSION" or part not in stamped:
                path.unlink()
    store = Store()
    await start(small_config(tmp_path), store)
    assert len(store.cookies) == 1


COOKIE = Cookie("b:1", "j", "l", "i-1")
OTHER = Cookie("b:2", "j", "l", "i-1")
STATES = ("empty", "stamped", "created", "in use", "unstamped data", "foreign", "torn stamp")


def put_in_state(path: Path, state: str) -> None:
    path.mkdir()
    stamps = {"stamped": COOKIE, "created": COOKIE, "in use": COOKIE, "foreign": OTHER}
    if state in stamps:
        (path / "VERSION").write_bytes(stamps[state].pack())
    if state == "torn stamp":
        (path / "VERSION").write_bytes(COOKIE.pack()[:-7])
    if state in ("created", "in use"):
        (path / "index.sqlite").touch()
    if state in ("in use", "unstamped data"):
        (path / "00000001.log").touch()


def expected(journal: str, ledgers: str, known: Cookie | None) -> str:
    """The rules in words: what a start with these directories and this entry in the metadata store comes to."""
    both = {journal, ledgers}
    if both & {"foreign", "torn stamp", "unstamped data"}:
        return "refused"
    written = bool(both & {"created", "in use"})
    if "empty" in both and written:
        return "refused: a directory is missing"
    if known is None:
        return "refused: is this the right store?" if "in use" in both else "new"
    if "empty" in both or not written:
        return "refused: wiped"
    return "known" if known == COOKIE else "refused: another bookie"


@pytest.mark.parametrize("known", [None, COOKIE, OTHER], ids=["unknown", "known", "known as another"])
@pytest.mark.parametrize("ledgers", STATES)
@pytest.mark.parametrize("journal", STATES)
async def test_every_start(tmp_path: Path, journal: str, ledgers: str, known: Cookie | None) -> None:
    store = Store()
    if known is not None:
        store.cookies["b:1"] = known.pack()
    directories = {"journal": str(tmp_path / "j"), "ledgers": str(tmp_path / "l")}
    put_in_state(tmp_path / "j", journal)
    put_in_state(tmp_path / "l", ledgers)
    try:
        tell, _ = await check_store(store, COOKIE, check_directories(OsDisk(), COOKIE, directories))
    except CookieError:
        outcome = "refused"
    else:
        outcome = "new" if tell else "known"
    assert outcome == expected(journal, ledgers, known).partition(":")[0]


async def test_emptied_directories_with_their_stamps_left_are_refused(tmp_path: Path) -> None:
    store = Store()
    await start(small_config(tmp_path), store)
    for part in ("journal", "ledgers"):
        for path in (tmp_path / part / "current").iterdir():
            if path.name != "VERSION":
                path.unlink()
    await refused(small_config(tmp_path), "its entries are lost here", store)


async def test_a_start_that_dies_before_the_store_is_told_is_repeated(tmp_path: Path) -> None:
    class Unreachable(Store):
        async def write(self, bookie_id: str, cookie: bytes, replaced: bytes | None = None) -> None:
            raise MetadataError("no answer")

    with pytest.raises(MetadataError):
        await start(small_config(tmp_path), Unreachable())
    await start(small_config(tmp_path), Store())


def unmarked(tmp_path: Path) -> bytes:
    """Turn the cookies into those of an older release; answers that of the store."""
    cookie = b""
    for part in ("journal", "ledgers"):
        file = tmp_path / part / "current" / "VERSION"
        lines = [line for line in file.read_text().splitlines(keepends=True) if not line.startswith("#")]
        cookie = "".join(lines).encode()
        file.write_bytes(cookie)
    return cookie


@pytest.mark.parametrize("older", [False, True])
async def test_moved_linked_and_copied_directories_are_welcome(tmp_path: Path, older: bool) -> None:
    store = Store()
    first, second, link, copy = (tmp_path / name for name in ("first", "second", "link", "copy"))
    await start(small_config(first), store)
    if older:
        store.cookies["127.0.0.1:3181"] = unmarked(first)
    first.rename(second)
    await start(small_config(second), store)
    link.symlink_to(second)
    await start(small_config(link), store)
    shutil.copytree(second, copy)
    shutil.rmtree(second)
    await start(small_config(copy), store)
    shutil.move(copy / "journal", tmp_path / "other disk")
    await start(small_config(copy, journal_dir=tmp_path / "other disk"), store)
    assert str(tmp_path / "other disk" / "current").encode() in store.cookies["127.0.0.1:3181"]


@pytest.mark.parametrize("part", ["journal", "ledgers"])
async def test_a_directory_of_another_first_start_is_refused(tmp_path: Path, part: str) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    await start(small_config(mine))
    await start(small_config(other))
    shutil.rmtree(mine / part)
    shutil.copytree(other / part, mine / part)
    await refused(small_config(mine), "do not belong together")


async def test_all_directories_of_another_first_start_are_refused(tmp_path: Path) -> None:
    store = Store()
    await start(small_config(tmp_path / "mine"), store)
    await start(small_config(tmp_path / "other"), Store())
    await refused(small_config(tmp_path / "other"), "of another first start", store)
    unmarked(tmp_path / "other")
    await refused(small_config(tmp_path / "other"), "of another first start", store)


async def test_exchanged_directories_are_refused(tmp_path: Path) -> None:
    await start(small_config(tmp_path))
    journal, ledgers = tmp_path / "journal", tmp_path / "ledgers"
    await refused(small_config(tmp_path, journal_dir=ledgers, ledger_dir=journal), "exchange the two")


async def test_an_older_release_that_told_no_store_is_adopted_once(tmp_path: Path) -> None:
    await start(small_config(tmp_path))
    unmarked(tmp_path)
    await start(small_config(tmp_path))  # whoever makes a backup opens it without a store, and leaves it as it is
    store = Store(adopts_unmarked=True)
    await start(small_config(tmp_path), store)
    assert store.cookies
    await refused(small_config(tmp_path), "does not know it", Store(adopts_unmarked=True))


@pytest.mark.parametrize("part", ["journal", "ledgers"])
async def test_a_crash_while_older_cookies_are_marked_is_survived(tmp_path: Path, part: str) -> None:
    store = Store()
    await start(small_config(tmp_path), store)
    marked = (tmp_path / part / "current" / "VERSION").read_bytes()
    store.cookies["127.0.0.1:3181"] = unmarked(tmp_path)
    (tmp_path / part / "current" / "VERSION").write_bytes(marked)
    await start(small_config(tmp_path), store)
    assert b"# directories" in store.cookies["127.0.0.1:3181"]
