"""A feed on a DataFrame: its steps, and the columns that travel to the units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import functions as F

from magnetar.pipeline.operators.changelog import CHANGE
from magnetar.pipeline.views.spark_steps import apply_steps
from magnetar.pipeline.views.stages import EPOCH_TIMESTAMP, Feed, Filter, Late, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


WatermarkOf: TypeAlias = Callable[[Sequence[str]], int | None]
"""That of some relations together, in microseconds; None while one of them has none."""


def apply_feed(frame: DataFrame, feed: Feed, now_us: int, watermark_us: WatermarkOf = lambda _: None) -> DataFrame:
    """`_change`, the feed's columns, and what it is ordered by. `now_us`: what `now()` is in this epoch.

    `watermark_us` is needed where a feed `is_late`.
    """
    if EPOCH_TIMESTAMP in repr(feed.steps):
        frame = frame.withColumn(EPOCH_TIMESTAMP, F.expr(f"timestamp_micros({now_us})"))
    frame = apply_steps(frame, [_closed(step, watermark_us) if isinstance(step, Late) else step for step in feed.steps])
    order = [name for name in feed.ordered_by if name not in feed.schema.names]
    return frame.select(*(F.col(quoted(name)) for name in (CHANGE, *order, *feed.schema.names)))


def _closed(step: Late, watermark_us: WatermarkOf) -> Filter:
    """The same rows for which a windowed aggregate finds that its window is closed."""
    reached_us = watermark_us(step.sources)
    return Filter("false" if reached_us is None else f"unix_micros({quoted(step.end)}) <= {reached_us}")
