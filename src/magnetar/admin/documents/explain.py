"""Answers of `explain` as types."""

from __future__ import annotations

from typing import Any

from magnetar.admin.documents.cluster import Document


class ExplainedReason(Document):
    """One reason. `code` is stable, see the reference of reason codes; `since` is ISO 8601 time, null where it is not known."""

    code: str
    text: str
    since: str | None
    change: str
    facts: dict[str, Any]


class Explanation(Document):
    """`subject` has `kind` and the names that were asked for. `moving` is null with nothing to do. The first reason weighs most."""

    subject: dict[str, Any]
    verdict: str
    moving: bool | None
    reasons: list[ExplainedReason]
    details: dict[str, Any]


class ReportTaken(Document):
    """`followed`: somebody looks at the pipeline at the moment."""

    followed: bool
