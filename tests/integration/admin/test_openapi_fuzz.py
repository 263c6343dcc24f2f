"""schemathesis over the OpenAPI document, against a real server: no 5xx, no status, type or body that is not documented."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
import requests

from magnetar.testing.server import ServerProcess
from tests.support.fuzz_hooks import NAMES

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
)
LEFT_OUT = r"/brokers/shutdown|/worker/|/admin/v3/(functions|sources|sinks)"
"""One ends the server, the others answer 503 by design (test_clusters_and_quotas)."""

ROOT = Path(__file__).resolve().parents[3]


def aimed(document: dict[str, Any], ledger: int) -> dict[str, Any]:
    """The document with parameters that name what exists: else nearly every answer would be 404."""
    names: dict[str, list[Any]] = {**NAMES, "ledger": [ledger, 0, 2**62]}
    required = names | {"topic": [f"persistent://fuzz/ns/{name}" for name in NAMES["topic"]]}
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation["parameters"]:
                known = names if parameter["in"] == "path" else required if parameter["required"] else {}
                if parameter["name"] in known:
                    values = known[parameter["name"]]
                    parameter["schema"] = {"enum": list(dict.fromkeys(values))}
    return document


def fuzz(server: ServerProcess, location: str, phases: str, examples: int) -> list[list[str]]:
    """(operation, status) of every call. Raises AssertionError with schemathesis's report."""
    answered = server.data_dir.parent / "answered"
    answered.unlink(missing_ok=True)
    command = [sys.executable, "-m", "schemathesis.cli", "run", location, "--url", server.http_url]
    command += ["--checks", ",".join(CHECKS), "--phases", phases, "--max-examples", str(examples), "--no-color"]
    command += ["--exclude-path-regex", LEFT_OUT, "--seed", "1", "--warnings", "off", "--generation-deterministic"]
    environment = os.environ | {
        "SCHEMATHESIS_HOOKS": "tests.support.fuzz_hooks",
        "FUZZED_SERVER": server.http_url,
        "FUZZ_ANSWERED": str(answered),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=server.data_dir.parent)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}\n{server.log()[-4000:]}"
    assert "Traceback" not in server.log()
    return [line.split() for line in answered.read_text().splitlines()]


@pytest.fixture
def aimed_document(server: ServerProcess, connect: Callable[..., pulsar.Client], tmp_path: Path) -> str:
    """Path of a document whose names exist, in a server that holds a message or two."""
    for method, path, body in (
        ("PUT", "tenants/fuzz", {"allowedClusters": ["standalone"]}),
        ("PUT", "namespaces/fuzz/ns", None),
    ):
        requests.request(method, f"{server.http_url}/admin/v2/{path}", json=body, timeout=60)
    producer = connect(server.service_url).create_producer("persistent://fuzz/ns/one")
    first = producer.send(b"one", properties={"a": "b"})
    producer.send(b"two")
    producer.close()
    document = requests.get(f"{server.http_url}/openapi.json", timeout=60).json()
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(aimed(document, first.ledger_id())))
    return str(file)


@pytest.mark.timeout(600)  # 15 s on a quiet machine
def test_answers_are_as_documented(server: ServerProcess, aimed_document: str) -> None:
    answered = fuzz(server, aimed_document, "fuzzing", 2)
    served = {operation for operation, status in answered if status.startswith("2")}
    assert len(served) > 0.6 * len({operation for operation, _ in answered}), "most calls must get past the names"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_answers_are_as_documented_whatever_is_asked(server: ServerProcess, aimed_document: str) -> None:
    fuzz(server, aimed_document, "coverage,fuzzing", 20)
    fuzz(server, f"{server.http_url}/openapi.json", "coverage,fuzzing", 5)
