"""What can go wrong between Spark and topics; leaves of the one error tree."""

from __future__ import annotations

from magnetar.base.errors import ConfigError, InvalidArgumentError
from magnetar.pipeline.errors import PipelineError


class OptionError(PipelineError, ConfigError):
    """An option of the data source is unknown, missing or has a bad value; the text names the fix."""

    slug = "spark-option"


class OffsetError(PipelineError, InvalidArgumentError):
    """An offset is not one of the forms that the data source takes."""

    slug = "spark-offset"


class TopicMissingError(PipelineError, InvalidArgumentError):
    """A topic that a batch read names does not exist; the text names the fix."""

    slug = "topic-missing"


class DataLossError(PipelineError):
    """Messages of the range are not in the topic any more."""

    slug = "data-loss"


class TopicReplacedError(DataLossError):
    """A topic ends before the position that was read to: it was deleted and made again, or lost what it held; the text names the fix."""

    slug = "topic-replaced"


class ReadStalledError(PipelineError):
    """The broker did not deliver a message of the range in time."""

    slug = "read-stalled"
    retriable = True


class AdminRequestError(PipelineError):
    """The broker's admin API refused or did not answer."""

    slug = "admin-request"
    retriable = True


class AdminUnreachableError(AdminRequestError):
    """The broker's admin API did not answer; it may later."""

    slug = "admin-unreachable"


class WriteError(PipelineError):
    """Rows cannot be written to topics."""

    slug = "spark-write"


class SourceError(PipelineError, InvalidArgumentError):
    """A source cannot be read as its statement says; the text names the fix."""

    slug = "source"


class SchemaError(PipelineError, InvalidArgumentError):
    """A registered schema and columns do not go together; the text names the fix."""

    slug = "registered-schema"


class SinkError(PipelineError, InvalidArgumentError):
    """A sink cannot be written as its statement says; the text names the fix."""

    slug = "sink"
