"""Topics become materialized views on Spark. `state` and `operators` know nothing of Spark; needs the extra `[spark]`.

`from magnetar.pipeline import Pipeline` is the way in; `explain_view` says how fresh a view is and where a row comes from;
`register` makes views tables of a Spark session; `stream_lag` says what a streaming query has not read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from magnetar.pipeline.connect.offsets import stream_lag
    from magnetar.pipeline.session_tables import register
    from magnetar.pipeline.views.control.why import explain_view
    from magnetar.pipeline.views.pipeline import Pipeline

__all__ = ["Pipeline", "explain_view", "register", "stream_lag"]

_HOMES: Final = {
    "Pipeline": "magnetar.pipeline.views.pipeline",
    "explain_view": "magnetar.pipeline.views.control.why",
    "register": "magnetar.pipeline.session_tables",
    "stream_lag": "magnetar.pipeline.connect.offsets",
}


def __getattr__(name: str) -> Any:
    """Imported when they are asked for: the parts below need not wait for Spark."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
