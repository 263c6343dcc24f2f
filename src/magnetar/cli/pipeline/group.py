"""`magnetar pipeline`: run views on Spark, look at them, query them, change how many units serve them."""

from __future__ import annotations

import os

import click

from magnetar.cli.lazy import LazyCommand, LazyGroup

COMMANDS = {
    "run": LazyCommand("magnetar.cli.pipeline.run:run_command", "Run a pipeline from a file, or resume it."),
    "query": LazyCommand("magnetar.cli.pipeline.query:query_command", "Query the views with SQL, at one epoch."),
    "serve": LazyCommand(
        "magnetar.cli.pipeline.serve:serve_command", "Serve views to psql and other clients of PostgreSQL."
    ),
    "password": LazyCommand(
        "magnetar.cli.pipeline.password:password_command", "Give a role a password for the served views."
    ),
    "subscribe": LazyCommand(
        "magnetar.cli.pipeline.subscribe:subscribe_command", "Print the changes of a view as they commit."
    ),
    "list": LazyCommand("magnetar.cli.pipeline.status:list_command", "All pipelines, and what they do."),
    "status": LazyCommand("magnetar.cli.pipeline.status:status_command", "Rows, epochs, lag and state of a pipeline."),
    "stop": LazyCommand("magnetar.cli.pipeline.stop:stop_command", "Stop a pipeline after its running epoch."),
    "explain": LazyCommand("magnetar.cli.pipeline.explain:explain_command", "What a file or a query becomes."),
    "rescale": LazyCommand(
        "magnetar.cli.pipeline.rescale:rescale_command", "Change the number of units, also while it runs."
    ),
    "drop": LazyCommand("magnetar.cli.pipeline.stop:drop_command", "Delete a pipeline and its state."),
}


@click.group("pipeline", cls=LazyGroup, table=COMMANDS)
def pipeline_group() -> None:
    """Keep materialized views over topics up to date, on Spark.

    A NAME is a directory below $MAGNETAR_HOME/pipelines (~/.magnetar/pipelines); a path or URL with a slash is taken as it is.
    """
    os.umask(0o077)  # the state holds what the topics hold: for this user alone
