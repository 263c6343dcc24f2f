"""Incremental operators: pure functions from (state, changes) to (state writes, changes). No Spark, no I/O; frames are polars'."""
