"""The transcripts of ZooKeeper's shell in the survey of Pulsar, reproduced by `magnetar metadata`, one test for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magnetar.base.executor import InlineExecutor
from magnetar.bookkeeper.ledger_metadata import FORMAT_BINARY, FORMAT_LINES, FORMAT_TEXT, LedgerMetadata, Segment
from magnetar.bookkeeper.service_info import service_info
from magnetar.cli.main import run
from magnetar.metadata.sqlite import SqliteMetadataStore
from magnetar.wire.pulsar.MLDataFormats_pb2 import ManagedCursorInfo, ManagedLedgerInfo

LEDGER_16 = """\
ensembleSize: 3
quorumSize: 2
ackQuorumSize: 2
lastEntryId: -1
state: OPEN
segment {
  ensembleMember: "10.13.48.57:3185"
  ensembleMember: "10.13.48.57:3184"
  ensembleMember: "10.13.48.57:3183"
  firstEntryId: 0
}
segment {
  ensembleMember: "10.13.48.57:3185"
  ensembleMember: "10.13.48.57:3184"
  ensembleMember: "10.13.48.57:3182"
  firstEntryId: 47
}
"""
"""Bookie 3183 went away at entry 46; 3182 took its place from 47 on."""

BROKER = (
    '{ "pulsarServiceUrl": "pulsar://localhost:6650", "cpu": { "usage": 23, "limit": 50 }, '
    '"memory": { "usage": 1, "limit": 10 }, "msgThroughputIn": 100, "msgThroughputOut": 100}'
)
LEADER = '{"serviceUrl":"http://localhost:8080","leaderReady":false}'
BUNDLES = ["0x00000000_0x40000000", "0x40000000_0x80000000", "0x80000000_0xc0000000", "0xc0000000_0xffffffff"]
OWNERSHIP = '{"nativeUrl":"pulsar://localhost:6650","httpUrl":"http://localhost:8080","disabled":false}'
PARTITIONED = '{"partitions":2}'

NODES: dict[str, bytes] = {
    "/loadbalance/brokers/localhost:8080": BROKER.encode(),
    "/loadbalance/leader": LEADER.encode(),
    "/admin/partitioned-topics/public/default/persistent/partitioned-topic-1": PARTITIONED.encode(),
    "/ledgers/cookies/b:3181": b'5\nbookieHost: "b:3181"\njournalDir: "/j"\nledgerDirs: "1\\t/l"\ninstanceId: "i"\n',
    "/ledgers/available/b:3181": service_info("b", 3181).to_bytes(),
    "/ledgers/LAYOUT": b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1",
    "/ledgers/underreplication/ledgers/0000/0000/0000/0010/urL0000000016": b'replica: "b:3181"\nctime: 7\n',
    "/ledgers/underreplication/locks/urL0000000016": b'bookieId: "b:3182"\n',
    "/ledgers/underreplication/auditorelection/V_0000000000": b'bookieId: "b:3183"\n',
    "/somewhere/bytes": b"\x00\x01ABC\xff",
    "/somewhere/empty": b"",
    "/ledgers/00/0000/L0017": b"damaged",
} | {f"/namespace/public/default/{bundle}": OWNERSHIP.encode() for bundle in BUNDLES}


def ledger_16(version: int) -> LedgerMetadata:
    members = ("10.13.48.57:3185", "10.13.48.57:3184")
    segments = (Segment(0, (*members, "10.13.48.57:3183")), Segment(47, (*members, "10.13.48.57:3182")))
    password = None if version == FORMAT_LINES else b""
    return LedgerMetadata(3, 2, 2, segments, password=password, format_version=version)


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    """All of the survey's nodes in one file."""
    path = tmp_path / "metadata.sqlite"
    store = await SqliteMetadataStore.open(path, InlineExecutor())
    for node, value in NODES.items():
        await store.put(node, value)
    for ledger_id, version in ((16, FORMAT_BINARY), (18, FORMAT_TEXT), (19, FORMAT_LINES)):
        await store.put(f"/ledgers/00/0000/L{ledger_id:04d}", ledger_16(version).to_bytes())
    topic = ManagedLedgerInfo(
        ledgerInfo=[{"ledgerId": 16, "entries": 47, "size": 4700, "timestamp": 1_600_000_000_000}]
    )
    await store.put("/managed-ledgers/public/default/persistent/orders", topic.SerializeToString())
    cursor = ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=16, markDeleteEntryId=3)
    await store.put("/managed-ledgers/public/default/persistent/orders/billing", cursor.SerializeToString())
    await store.close()
    return path


class Shell:
    """`shell("get", path)`: what the command prints."""

    def __init__(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file = file
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        assert run(["metadata", *words, "--metadata", f"sqlite:{self._file}"]) == code
        printed = self._capsys.readouterr()
        return printed.out if code == 0 else printed.err


@pytest.fixture
def shell(file: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(file, capsys)


def test_get_loadbalance_broker(shell: Shell) -> None:
    assert shell("get", "/loadbalance/brokers/localhost:8080") == BROKER + "\n"


def test_get_loadbalance_leader(shell: Shell) -> None:
    assert shell("get", "/loadbalance/leader") == LEADER + "\n"


def test_ls_namespace(shell: Shell) -> None:
    assert shell("ls", "/namespace/public/default") == f"[{', '.join(BUNDLES)}]\n"
    assert json.loads(shell("ls", "/namespace/public/default", "--json")) == BUNDLES
    assert shell("ls", "/namespace/public/default", "--raw").splitlines() == BUNDLES


def test_get_bundle_ownership(shell: Shell) -> None:
    assert shell("get", "/namespace/public/default/0x80000000_0xc0000000") == OWNERSHIP + "\n"


def test_get_partitioned_topic(shell: Shell) -> None:
    path = "/admin/partitioned-topics/public/default/persistent/partitioned-topic-1"
    assert shell("get", path) == PARTITIONED + "\n"
    assert json.loads(shell("get", path, "--json"))["value"] == {"partitions": 2}


@pytest.mark.parametrize("ledger", ["L0016", "L0018", "L0019"])
def test_get_ledger_16_with_its_segments(shell: Shell, ledger: str) -> None:
    """In all three formats in which BookKeeper ever wrote it."""
    printed = shell("get", f"/ledgers/00/0000/{ledger}")
    assert printed.startswith(LEDGER_16)
    assert "length: 0\ndigestType: CRC32C\n" in printed
    decoded = json.loads(shell("get", f"/ledgers/00/0000/{ledger}", "--json"))
    assert decoded["kind"] == "LedgerMetadata"
    assert [segment["firstEntryId"] for segment in decoded["value"]["segment"]] == [0, 47]
    assert decoded["value"]["segment"][1]["ensembleMember"][2] == "10.13.48.57:3182"


def test_ls_of_the_ledgers(shell: Shell) -> None:
    assert shell("ls", "/ledgers/00/0000") == "[L0016, L0017, L0018, L0019]\n"


def test_managed_ledger_and_cursor(shell: Shell) -> None:
    path = "/managed-ledgers/public/default/persistent/orders"
    assert "ledgerInfo {\n  ledgerId: 16\n  entries: 47\n" in shell("get", path)
    assert shell("ls", path) == "[billing]\n"
    assert json.loads(shell("get", path, "--json"))["value"]["ledgerInfo"][0]["size"] == 4700
    assert "cursorsLedgerId: -1\nmarkDeleteLedgerId: 16\nmarkDeleteEntryId: 3\n" in shell("get", f"{path}/billing")


@pytest.mark.parametrize(
    ("path", "kind", "text", "value"),
    [
        ("/ledgers/cookies/b:3181", "Cookie", 'journalDir: "/j"', {"bookieHost": "b:3181", "version": 5}),
        ("/ledgers/available/b:3181", "BookieServiceInfo", 'protocol: "bookie-rpc"', {}),
        ("/ledgers/LAYOUT", "text", "HierarchicalLedgerManagerFactory:1", None),
        (
            "/ledgers/underreplication/ledgers/0000/0000/0000/0010/urL0000000016",
            "UnderreplicatedLedger",
            'replica: "b:3181"',
            {"replica": ["b:3181"], "ctime": 7},
        ),
        ("/ledgers/underreplication/locks/urL0000000016", "LockData", "b:3182", {"bookieId": "b:3182"}),
        ("/ledgers/underreplication/auditorelection/V_0000000000", "AuditorVote", "b:3183", {"bookieId": "b:3183"}),
        ("/somewhere/bytes", "bytes", "00000000  00 01 41 42 43 ff", None),
        ("/somewhere/empty", "empty", "", None),
        ("/ledgers/00/0000/L0017", "text", "damaged", None),
    ],
)
def test_every_kind_of_value(shell: Shell, path: str, kind: str, text: str, value: dict[str, object] | None) -> None:
    assert text in shell("get", path)
    decoded = json.loads(shell("get", path, "--json"))
    assert decoded["kind"] == kind
    if value is not None:
        assert decoded["value"].items() >= value.items()


def test_raw_prints_the_bytes(file: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["metadata", "get", "/somewhere/bytes", "--raw", "--metadata", f"sqlite:{file}"]) == 0
    assert capfdbinary.readouterr().out == b"\x00\x01ABC\xff"


def test_stat(shell: Shell) -> None:
    lines = dict(line.split(" = ") for line in shell("stat", "/loadbalance/leader").splitlines())
    assert lines["dataVersion"] == "0"
    assert lines["dataLength"] == str(len(LEADER))
    assert lines["cZxid"].startswith("0x")
    assert json.loads(shell("stat", "/namespace/public/default", "--json"))["numChildren"] == 4


def test_what_is_missing_is_said_with_a_way_on(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "magnetar metadata ls /ledgers/00/0000" in shell("get", "/ledgers/00/0000/L9999", code=1)
    assert "does not exist" in shell("ls", "/nothing", code=1)
    assert "must start with '/'" in shell("get", "ledgers", code=1)
    assert "Give one of" in shell("ls", "/", "--data-dir", str(tmp_path), code=2)
    assert run(["metadata", "ls", "/", "--data-dir", str(tmp_path / "none")]) == 1
    assert "is not a data directory" in capsys.readouterr().err
    assert run(["metadata", "ls", "/", "--metadata", "memory:"]) == 1
    assert "inside another process" in capsys.readouterr().err
