"""What can go wrong in a pipeline; a branch of the one error tree."""

from __future__ import annotations

from magnetar.base.errors import BadVersionError, CorruptionError, InvalidArgumentError, MagnetarError, StartupError


class PipelineError(MagnetarError):
    """A pipeline cannot do what it was asked for."""

    slug = "pipeline"


class DriverFencedError(PipelineError, BadVersionError):
    """Another driver has taken this pipeline over; this one must stop and may not deliver anything any more."""

    slug = "driver-fenced"
    retriable = False


class UnknownEpochError(PipelineError):
    """The manifest of that epoch was collected, or never was."""

    slug = "unknown-epoch"


class DamagedStateError(PipelineError, CorruptionError):
    """A run or a manifest does not match its checksum: nothing of it is used."""

    slug = "damaged-state"


class StateSchemaError(PipelineError, InvalidArgumentError):
    """Rows do not have the columns of their table."""

    slug = "state-schema"


class ChangelogError(PipelineError, InvalidArgumentError):
    """Changes do not fit each other, their columns or the rows they change: one is missing, doubled or from elsewhere."""

    slug = "changelog"
    retriable = False


class LateRowsError(PipelineError):
    """Rows came for a closed window, and the view says `late_rows = 'fail'`."""

    slug = "late-rows"
    retriable = False


class UndecodableMessageError(PipelineError):
    """A message cannot be read as its source says, and the source does not say `on.decode.error`; the text has its place and the fix."""

    slug = "undecodable-message"
    retriable = False


class FailedExpressionError(PipelineError):
    """An expression fails for a row, and the view says `on.error = 'strict'`; the text has the view, the expression and the row's place."""

    slug = "failed-expression"
    retriable = False


class AggregateOverflowError(PipelineError):
    """A sum of whole numbers left 64 bits; sum a decimal or a double instead."""

    slug = "aggregate-overflow"
    retriable = False


class SqlError(PipelineError, InvalidArgumentError):
    """A statement cannot be read. `line` and `column` (from 1) say where, the text says what to write instead."""

    slug = "sql"

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line = line
        self.column = column


class PlanRefusedError(SqlError):
    """The query reads well but has no exact incremental plan; the text says why and what to write instead."""

    slug = "plan-refused"


class ExpressionError(PipelineError, InvalidArgumentError):
    """Spark cannot make sense of an expression: a column, function or type does not fit."""

    slug = "expression"


class PipelineRunningError(PipelineError, StartupError):
    """Another process runs this pipeline; a pipeline has one driver at a time."""

    slug = "pipeline-running"


class CatalogError(PipelineError, InvalidArgumentError):
    """A name is taken, unknown or still in use."""

    slug = "catalog"


class StateLossError(CatalogError):
    """An edited statement does not fit the rows that its object has kept; it has to be built again, which nobody has agreed to."""

    slug = "state-loss"
