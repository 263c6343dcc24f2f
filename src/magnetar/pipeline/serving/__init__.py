"""Views of a pipeline as tables that answer SQL without Spark: by the `query` command, and by PostgreSQL's protocol."""
