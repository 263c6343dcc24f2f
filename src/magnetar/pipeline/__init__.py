"""Topics become materialized views on Spark. `state` and `operators` know nothing of Spark; needs the extra `[spark]`.

`from magnetar.pipeline import Pipeline` is the way in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magnetar.pipeline.views.pipeline import Pipeline

__all__ = ["Pipeline"]


def __getattr__(name: str) -> Any:
    """`Pipeline` when it is asked for: the parts below need not wait for Spark to be imported."""
    if name != "Pipeline":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from magnetar.pipeline.views.pipeline import Pipeline

    return Pipeline
