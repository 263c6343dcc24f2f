"""The table in docs/reference/policies.md is the table of the code."""

from __future__ import annotations

import re
from pathlib import Path

from magnetar.admin.policy_rows import POLICY_ROWS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "policies.md"
QUOTA = ("backlog_quota", "backlogQuota", "backlogQuota", "at once")
"""A map with a type for each entry, so no row (`admin/routes/topic/topic_policies`)."""


def test_every_policy_is_documented_as_it_is() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    written = re.findall(r"^\| `(\w+)` \| (\S+) \| (\S+) \| ([^|]+) \|$", text, re.MULTILINE)
    found = [(name, ns.strip("`-"), topic.strip("`-"), effect) for name, ns, topic, effect in written]
    expected = [(row.name, row.namespace, row.topic, row.effect) for row in POLICY_ROWS]
    assert found == sorted([*expected, QUOTA])
