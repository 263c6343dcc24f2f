"""Spark looks for modules named `pyspark_*`: this one makes `format("magnetar.view")` known without a call to register it."""

from magnetar.pipeline.views.scan.source import ViewDataSource as DefaultSource

__all__ = ["DefaultSource"]
