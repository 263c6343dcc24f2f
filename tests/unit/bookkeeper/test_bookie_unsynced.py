"""A bookie that acknowledges before its disk has an entry, and the machine goes down."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.errors import UnsyncedError
from tests.unit.bookkeeper.bookie_helpers import FaultDisk, Fuse, add, open_bookie, read


async def killed(path: Path, **settings: object) -> None:
    """Dies after an add."""
    fuse = Fuse()
    async with open_bookie(path, FaultDisk(fuse), **settings) as bookie:
        assert await add(bookie, 1, 0) == ReturnCode.OK
        fuse.limit = fuse.burnt


async def test_after_a_kill_it_goes_on_and_after_a_reboot_it_does_not(tmp_path: Path) -> None:
    await killed(tmp_path, unsafe_no_fsync=True, boot_id="one")
    async with open_bookie(tmp_path, unsafe_no_fsync=True, boot_id="one") as bookie:
        assert (await read(bookie, 1, 0))[0] == ReturnCode.OK
    await killed(tmp_path, unsafe_no_fsync=True, boot_id="one")
    for unsafe in (True, False):
        with pytest.raises(UnsyncedError, match="Decommission it"):
            async with open_bookie(tmp_path, unsafe_no_fsync=unsafe, boot_id="two"):
                raise AssertionError("it must not start")


async def test_after_a_clean_stop_any_boot_will_do(tmp_path: Path) -> None:
    async with open_bookie(tmp_path, unsafe_no_fsync=True, boot_id="one") as bookie:
        await add(bookie, 1, 0)
    async with open_bookie(tmp_path, boot_id="two") as bookie:
        assert (await read(bookie, 1, 0))[0] == ReturnCode.OK


async def test_a_bookie_that_syncs_starts_after_any_boot(tmp_path: Path) -> None:
    await killed(tmp_path, boot_id="one")
    async with open_bookie(tmp_path, boot_id="two") as bookie:
        assert (await read(bookie, 1, 0))[0] == ReturnCode.OK
