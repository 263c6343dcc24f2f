"""Topics become materialized views on Spark. `state` and `operators` know nothing of Spark; needs the extra `[spark]`."""
