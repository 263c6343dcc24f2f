"""A typed client of the admin API, for this server and for Apache Pulsar. Imports nothing of the server's own work.

    from magnetar.admin.client import AdminClient

    with AdminClient("http://127.0.0.1:8080", token="...") as admin:
        admin.topics.create_partitioned("orders", 4)
        print(admin.topics.stats("orders").msg_rate_in)

Every noun of `pulsar-admin` is an attribute; methods take names as texts and answer the types of `magnetar.admin.*documents`.
"""

from __future__ import annotations

from magnetar.admin.client.client import AdminClient, AsyncAdminClient
from magnetar.admin.client.errors import (
    AdminClientError,
    AnswerError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    NotAllowedError,
    NotFoundError,
    PreconditionFailedError,
    RefusedError,
    ServerFailedError,
    UnauthorizedError,
    UnprocessableError,
    UnreachableError,
)

__all__ = [
    "AdminClient",
    "AdminClientError",
    "AnswerError",
    "AsyncAdminClient",
    "BadRequestError",
    "ConflictError",
    "ForbiddenError",
    "NotAllowedError",
    "NotFoundError",
    "PreconditionFailedError",
    "RefusedError",
    "ServerFailedError",
    "UnauthorizedError",
    "UnprocessableError",
    "UnreachableError",
]
