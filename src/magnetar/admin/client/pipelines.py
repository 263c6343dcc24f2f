"""Pipelines that read the cluster's topics."""

from __future__ import annotations

import msgspec

from magnetar.admin.client.noun import Noun
from magnetar.admin.documents.explain import ReportTaken
from magnetar.broker.pipelines.report import PipelineReport


class Pipelines(Noun):
    """As their drivers reported last."""

    def list(self) -> list[PipelineReport]:
        """All that the caller may see."""
        found: list[PipelineReport] = self._get("/pipelines", list[PipelineReport])
        return found

    def get(self, pipeline: str) -> PipelineReport:
        """One of them; its driver reports often for a while."""
        found: PipelineReport = self._get("/pipelines/{pipeline}", PipelineReport, pipeline=pipeline)
        return found

    def report(self, pipeline: str, report: PipelineReport) -> ReportTaken:
        """What a driver does."""
        template = "/admin/v2/pipelines/{pipeline}"
        answer = self._call("PUT", template, {"pipeline": pipeline}, None, msgspec.to_builtins(report))
        taken: ReportTaken = self._converted(answer, ReportTaken)
        return taken

    def forget(self, pipeline: str) -> None:
        """What it reported goes; one that runs reports again."""
        self._delete("/pipelines/{pipeline}", pipeline=pipeline)
