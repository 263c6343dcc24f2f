"""A feed on a DataFrame: its steps, and the columns that travel to the units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from magnetar.pipeline.operators.changelog import CHANGE
from magnetar.pipeline.views.spark_steps import apply_steps
from magnetar.pipeline.views.stages import EPOCH_TIMESTAMP, Feed, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def apply_feed(frame: DataFrame, feed: Feed, now_us: int) -> DataFrame:
    """`_change`, the feed's columns, and what it is ordered by. `now_us`: what `now()` is in this epoch."""
    if EPOCH_TIMESTAMP in repr(feed.steps):
        frame = frame.withColumn(EPOCH_TIMESTAMP, F.expr(f"timestamp_micros({now_us})"))
    frame = apply_steps(frame, feed.steps)
    order = [name for name in feed.ordered_by if name not in feed.schema.names]
    return frame.select(*(F.col(quoted(name)) for name in (CHANGE, *order, *feed.schema.names)))
