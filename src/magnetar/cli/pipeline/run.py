"""`magnetar pipeline run`: the driver of a pipeline, until it is told to stop."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click

from magnetar.base.java import find_java
from magnetar.cli.errors import CommandError
from magnetar.cli.output import json_option, print_json
from magnetar.cli.pipeline.progress import Progress, progress
from magnetar.cli.pipeline.serving_beside import check_ports, serving_beside
from magnetar.cli.storage.store_access import environment_credentials
from magnetar.pipeline.home import pipeline_directory
from magnetar.pipeline.java import make_in_background
from magnetar.pipeline.sql.changes import Change

GO_ON: Final = "run it again to go on behind the last epoch"
EXIT_AT_ONCE: Final = 130
BUSY_HINT: Final = "the machine is so busy that a process did not start within Spark's 10 s: run it again"


@click.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", help="Name of the pipeline.  [default: the file's name without its ending]")
@click.option(
    "--dir", "directory", help="Directory of the pipeline: a path or URL.  [default: $MAGNETAR_HOME/pipelines/NAME]"
)
@click.option(
    "--master", default="local[2]", show_default=True, help="Spark's master: local[N], spark://HOST:PORT, ..."
)
@click.option(
    "--units", type=click.IntRange(1), help="Number of parallel units.  [default: as before; at first Spark's cores]"
)
@click.option("--once", is_flag=True, help="Process what is in the topics now, then end.")
@click.option(
    "--service-url",
    envvar="MAGNETAR_URL",
    show_envvar=True,
    help="Service URL of sources and sinks that do not name one.",
)
@click.option("--admin-url", help="Admin API for sources without admin.url; it makes the lag exact.")
@click.option("--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
@click.option("--metadata", "metadata_url", help="Metadata store (zk:...) that shares the vnode mapping.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve metrics for Prometheus on 127.0.0.1.")
@click.option(
    "--serve",
    "serve_port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve the views to PostgreSQL's clients as well, as `pipeline serve` does; its settings come from the environment.",
)
@click.option(
    "--http-port",
    type=click.IntRange(-1, 65535),
    help="With --serve: port of queries over HTTP (/sql/NAME); 0 = any free.  [default: none]",
)
@click.option(
    "--low-latency/--no-low-latency",
    default=True,
    show_default=True,
    help="Begin an epoch as soon as a broker has something, and run one of few rows by a plan that is kept, in one task. Without it "
    "Spark's streaming query begins an epoch every half second, which takes less CPU while rows come one by one.",
)
@click.option("--ui", is_flag=True, help="Serve Spark's UI; its jobs name view and epoch.")
@click.option("-y", "--yes", is_flag=True, help="Build again, from the topics, what an edited statement does not keep.")
@click.option("--dry-run", is_flag=True, help="Show what the file changes in the pipeline, then end.")
@click.option("-v", "--verbose", is_flag=True, help="Write Spark's log to stderr instead of spark.log.")
@json_option
def run_command(
    file: Path,
    name: str | None,
    directory: str | None,
    master: str,
    units: int | None,
    once: bool,
    service_url: str | None,
    admin_url: str | None,
    settings: tuple[str, ...],
    metadata_url: str | None,
    metrics_port: int | None,
    serve_port: int | None,
    http_port: int | None,
    low_latency: bool,
    ui: bool,
    yes: bool,
    dry_run: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Keep the views of FILE (.sql or .py) up to date until Ctrl-C, SIGTERM or `magnetar pipeline stop`.

    A later run continues after the last committed epoch, however this one ended. An edited file is applied: the plan of changes is shown,
    options, new columns and new views leave the state as it is, and what does not is asked for (--yes agrees, --dry-run only shows).
    Ctrl-C lets the running epoch finish; a second one ends at once and loses nothing either. With --json each epoch is a line.
    """
    conf = _settings(settings, ui)
    from magnetar.cli.messages.pulsar_client import probe
    from magnetar.cli.pipeline.files import load

    check_ports(serve_port, http_port)
    given = _addresses(file, service_url, admin_url)
    pipeline = load(file, name, None if directory is None else pipeline_directory(directory), given)
    plan = pipeline.changes()
    if dry_run:
        show_changes(plan, as_json)
        return
    rebuild = agreed(plan, yes)
    for url in {str(entry.statement.options["service.url"]) for entry in addressed(pipeline.catalog)}:
        probe(url)
    local = pipeline.place.local
    with progress(as_json) as shown, ExitStack() as stack:

        def session() -> Any:
            from magnetar.pipeline.session import build_session

            shown.say(f"{pipeline.name}: starting Spark ({master})")
            log_path = None if verbose else local / "spark.log"
            return build_session(master, app_name=f"magnetar {pipeline.name}", settings=conf, log_path=log_path)

        def on_start(_: object) -> None:
            _stop_on_signals(pipeline, shown)
            shown.say(_whereabouts(pipeline, master))
            stack.enter_context(serving_beside(pipeline.place.directory, serve_port, shown.say, http_port))

        pipeline.prepare(
            session=session,
            units=units,
            metrics_port=metrics_port,
            metadata_url=metadata_url,
            metadata_credentials=environment_credentials() if metadata_url is not None else None,
            rebuild=rebuild,
            low_latency=low_latency,
        )
        with plain_spark_errors(None if verbose else local / "spark.log"):
            pipeline.run(once=once, on_epoch=lambda report: shown.epoch(report, pipeline.status), on_start=on_start)
        shown.say(f"{pipeline.name} stopped at epoch {pipeline.status.epoch}; run it again to go on")


def _whereabouts(pipeline: Any, master: str) -> str:
    web = pipeline.spark.sparkContext.uiWebUrl
    parts = [f"{pipeline.name} runs in {pipeline.place.directory}", *([f"Spark's UI: {web}"] if web else [])]
    if pipeline.metrics_port is not None:
        parts.append(f"metrics: http://127.0.0.1:{pipeline.metrics_port}/metrics")
    if master.startswith("local") and (archive := make_in_background(find_java().resolve())) is not None:
        parts.append(
            f"Spark's Java classes will be written to {archive}, so that it starts faster from the next time on"
        )
    return "; ".join(parts)


def _addresses(file: Path, service_url: str | None, admin_url: str | None) -> dict[str, str]:
    """Options of sources and sinks that do not say them."""
    defaults = {"service.url": service_url, "admin.url": admin_url}
    given = {option: value for option, value in defaults.items() if value is not None}
    if file.suffix == ".py" and click.get_current_context().get_parameter_source("service_url") is not (
        click.core.ParameterSource.COMMANDLINE
    ):
        given.pop("service.url", None)  # the environment's is a default, which a script may do without
    return given


def show_changes(plan: Sequence[Change], as_json: bool) -> None:
    """Of an edited file, a line an object."""
    rows = [{"action": each.action, "kind": each.kind, "name": each.name, "why": each.why} for each in plan]
    if as_json:
        print_json(rows)
        return
    for change in plan:
        click.echo(change.describe())
    if not plan:
        click.echo("nothing changes")


def agreed(plan: Sequence[Change], yes: bool) -> bool:
    """Shows what an edited file changes; whether what it does not keep may be built again. CommandError when it may not."""
    if all(change.action == "create" for change in plan):
        return yes
    for change in plan:
        click.echo(change.describe(), err=True)
    lost = [change.name for change in plan if not change.keeps_state]
    if not lost or yes:
        return yes
    question = f"build {', '.join(lost)} again from what the topics still hold?"
    if sys.stdin.isatty() and click.confirm(question, err=True):
        return True
    raise CommandError(
        f"nothing was changed: the rows of {', '.join(lost)} do not fit the edited statements; pass --yes to build them again from what "
        "the topics still hold, or give the new ones other names"
    )


def addressed(catalog: Any) -> list[Any]:
    """The sources and sinks of a catalog that name a broker."""
    entries = [entry for entry in catalog.entries.values() if entry.kind not in ("VIEW", "MATERIALIZED VIEW")]
    return [entry for entry in entries if "service.url" in entry.statement.options]


@contextmanager
def plain_spark_errors(log_path: Path | None) -> Iterator[None]:
    """What Spark and the client library raise, as one line that says where the rest is. Raises CommandError."""
    import pulsar
    from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from magnetar.cli.messages.pulsar_client import plain
    from magnetar.pipeline.views.control.failures import cause

    try:
        yield
    except pulsar.PulsarException as error:
        raise CommandError(
            f"the broker does not answer or refuses ({plain(error)}); is a server running at the service.url of the sources and "
            f"sinks? {GO_ON}"
        ) from error
    except (Py4JNetworkError, ConnectionError) as error:
        where = f"; more in {log_path}" if log_path is not None else ""
        raise CommandError(
            f"Spark's JVM has ended, as one does that is killed or has too little memory (--conf spark.driver.memory=4g){where}; {GO_ON}"
        ) from error
    except (PySparkException, Py4JError) as error:
        where = f"; more in {log_path}" if log_path is not None else ""
        hint = BUSY_HINT if "failed to connect back" in str(error) else GO_ON
        raise CommandError(f"Spark: {cause(error)}{where}; {hint}") from error


def _settings(assignments: tuple[str, ...], ui: bool) -> dict[str, str]:
    found = {"spark.ui.enabled": "true"} if ui else {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator or not key.startswith("spark."):
            raise CommandError(
                "--conf: expected KEY=VALUE with a key that begins with spark.; what was given is not repeated"
            )
        found[key] = value
    return found


def _stop_on_signals(pipeline: Any, shown: Progress) -> None:
    """After Spark has started, since it takes Ctrl-C for itself: there it cancels the jobs of the running epoch."""
    told: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        if told and number == signal.SIGINT:
            shown.__exit__(None, None, None)
            os._exit(EXIT_AT_ONCE)  # the epoch is not committed; Spark's processes end when this one has
        told.append(number)
        pipeline.request_stop()
        if number == signal.SIGINT:
            shown.say("stopping after the running epoch; Ctrl-C again ends at once")

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
