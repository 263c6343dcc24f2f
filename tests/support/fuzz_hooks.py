"""Loaded by schemathesis (SCHEMATHESIS_HOOKS): what requests have deleted is there again for the next ones."""

from __future__ import annotations

import os
from typing import Any

import requests
import schemathesis

BASE = os.environ.get("FUZZED_SERVER", "")
NAMES = {
    "tenant": ["fuzz"],
    "namespace": ["ns"],
    "topic": ["one", "parted", "parted-partition-0", "none"],
    "subscription": ["sub", "none"],
    "cluster": ["standalone", "far"],
    "role": ["somebody"],
    "domainName": ["rack"],
    "policyName": ["policy"],
    "bundle": ["0x00000000_0x40000000", "0x00000000_0xffffffff", "0x0_0x1"],
    "allocator": ["default", "none"],
    "version": [0, 1, 99],
    "key": ["maxProducersPerTopic", "defaultNumPartitions", "none"],
    "value": ["1", "many"],
    "entry": [0, 1, 99],
    "number": [1, 2, 99],
    "count": [0, 1, 99],
    "seconds": [0, 1, 2**31],
    "domain": ["persistent", "persistent", "non-persistent"],
}
"""Values of path parameters that lead somewhere; the others are made up. Ledgers are put in by the test."""

_dirty = True


def seed() -> None:
    """Whatever is missing of what NAMES names."""
    calls: tuple[tuple[str, str, Any], ...] = (
        ("PUT", "tenants/fuzz", {"allowedClusters": ["standalone"]}),
        ("PUT", "namespaces/fuzz/ns", None),
        ("PUT", "persistent/fuzz/ns/one", None),
        ("PUT", "persistent/fuzz/ns/parted/partitions", 2),
        ("PUT", "persistent/fuzz/ns/one/subscription/sub", {"ledgerId": -1, "entryId": -1}),
        ("PUT", "persistent/fuzz/ns/parted/subscription/sub", {"ledgerId": -1, "entryId": -1}),
        ("POST", "schemas/fuzz/ns/one/schema", {"type": "STRING", "schema": "", "properties": {}}),
        ("PUT", "clusters/far", {"serviceUrl": "http://far:8080"}),
    )
    for method, path, body in calls:
        requests.request(method, f"{BASE}/admin/v2/{path}", json=body, timeout=60)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    global _dirty
    if _dirty:
        seed()
    _dirty = case.method.upper() == "DELETE"


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    with open(os.environ["FUZZ_ANSWERED"], "a") as file:
        file.write(f"{case.method}:{case.operation.path} {response.status_code}\n")
