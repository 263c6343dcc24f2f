"""`magnetar spark-pipelines`: Spark's own commands for declarative pipelines, with views that are kept."""

from __future__ import annotations

from contextlib import redirect_stdout
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magnetar.cli.errors import CommandError
from magnetar.cli.output import json_option, print_json
from magnetar.cli.pipeline.run import plain_spark_errors

if TYPE_CHECKING:
    from magnetar.pipeline.declarative.run import Run


@click.group("spark-pipelines")
def spark_pipelines_group() -> None:
    """Projects of Spark Declarative Pipelines, as `spark-pipelines` runs them.

    A materialized view is kept where that is exact: a refresh reads the rows of new files alone. All others are computed anew by Spark;
    `dry-run` says which, and why.
    """


def _names(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[str]:
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


_spec = click.option(
    "--spec", type=click.Path(path_type=Path), help="The project's spec.  [default: spark-pipeline.yml here or above]"
)
_master = click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
_conf = click.option(
    "--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be repeated."
)


@spark_pipelines_group.command("run")
@_spec
@click.option("--full-refresh", multiple=True, callback=_names, metavar="NAMES", help="Datasets to compute anew (a,b).")
@click.option("--full-refresh-all", is_flag=True, help="Compute all datasets anew.")
@click.option("--refresh", multiple=True, callback=_names, metavar="NAMES", help="Update these alone (a,b).")
@_master
@_conf
@json_option
def run_command(
    spec: Path | None,
    full_refresh: list[str],
    full_refresh_all: bool,
    refresh: list[str],
    master: str,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Bring the datasets of a project up to date, each after those that it reads."""
    if full_refresh_all and (full_refresh or refresh):
        raise CommandError("--full-refresh-all is for all datasets; leave --full-refresh and --refresh out")
    with plain_spark_errors(None):
        done = _prepared(spec, master, settings, quiet=as_json).run(refresh, full_refresh, full_refresh_all)
    if as_json:
        print_json([asdict(each) for each in done])
    else:
        click.echo(f"{len(done)} datasets are up to date", err=True)


@spark_pipelines_group.command("dry-run")
@_spec
@_master
@_conf
@json_option
def dry_run_command(spec: Path | None, master: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Check a project, and say of every dataset whether it is kept or computed anew, and why."""
    with plain_spark_errors(None):
        planned = _prepared(spec, master, settings).dry_run()
    if as_json:
        print_json([each.describe() for each in planned])
        return
    for each in planned:
        click.echo(f"{each.place}: {each.kind} {each.name}: {each.how}")


@spark_pipelines_group.command("init")
@click.option("--name", required=True, help="Name of the project, and of its directory below this one.")
@json_option
def init_command(name: str, as_json: bool) -> None:
    """Make a project with a spec and two examples, by Spark's own `spark-pipelines init`."""
    from pyspark.pipelines.init_cli import init

    try:
        with redirect_stdout(StringIO()):  # which names Spark's own command
            init(name)
    except FileExistsError as error:
        raise CommandError(str(error)) from error
    if as_json:
        print_json({"project": name, "directory": str(Path.cwd() / name)})
    else:
        click.echo(f"{name} has a spec and two examples; run them: cd {name} && magnetar spark-pipelines run")


def _prepared(spec: Path | None, master: str, settings: tuple[str, ...], *, quiet: bool = False) -> Run:
    """With its session started."""
    from magnetar.pipeline.declarative.project import find_spec, load_project
    from magnetar.pipeline.declarative.run import Run
    from magnetar.pipeline.session import build_session

    project = load_project(find_spec(Path.cwd()) if spec is None else spec)
    given: dict[str, Any] = {}
    for assignment in settings:
        key, separator, value = assignment.partition("=")
        if not separator:
            raise CommandError("--conf: expected KEY=VALUE; what was given is not repeated")
        given[key] = value
    # Full refreshes are Spark's own, with what it does by default; epochs of the engine switch it off for themselves.
    own = {"spark.sql.adaptive.enabled": "true", **project.configuration, **given}
    spark = build_session(master, app_name=f"magnetar {project.name}", settings=own)
    return Run(spark, project, say=(lambda _: None) if quiet else click.echo)
