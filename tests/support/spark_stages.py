"""What Spark itself counted of the stages that a session ran."""

from __future__ import annotations

from typing import Any, Final

EVENTS_TIMEOUT_MS: Final = 120_000


def _stages(spark: Any) -> Any:
    context = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty(EVENTS_TIMEOUT_MS)  # what is counted comes by events
    gateway = context._gateway
    nothing = gateway.jvm.java.util.ArrayList()
    quantiles = gateway.new_array(gateway.jvm.double, 0)
    return context._jsc.sc().statusStore().stageList(None, False, False, quantiles, nothing)


def stages_so_far(spark: Any) -> int:
    """The number below which stages lie that were there before."""
    found = _stages(spark)
    return max((found.apply(place).stageId() + 1 for place in range(found.size())), default=0)


def shuffle_bytes(spark: Any, since: int) -> int:
    """Written and read by shuffles of the stages from a number on."""
    found = _stages(spark)
    stages = [found.apply(place) for place in range(found.size())]
    assert any(each.stageId() >= since for each in stages), "nothing has run"
    return sum(each.shuffleWriteBytes() + each.shuffleReadBytes() for each in stages if each.stageId() >= since)
