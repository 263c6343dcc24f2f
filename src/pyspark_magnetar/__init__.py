"""Spark looks for modules named `pyspark_*`: this one makes `format("magnetar")` known without a call to register it."""

from magnetar.pipeline.connect.source import MagnetarDataSource as DefaultSource

__all__ = ["DefaultSource"]
