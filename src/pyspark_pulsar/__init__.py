"""Spark looks for modules named `pyspark_*`: this one makes `format("pulsar")` known without a call to register it."""

from magnetar.pipeline.connect.source import PulsarDataSource as DefaultSource

__all__ = ["DefaultSource"]
