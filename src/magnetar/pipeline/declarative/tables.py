"""A stored dataset as a table of Spark's catalog."""

from __future__ import annotations

from magnetar.pipeline.declarative.storage import Storage, Stored
from magnetar.pipeline.views.scan.session_catalog import VIEW_PROVIDER, TableEntry


def entry_of(storage: Storage, stored: Stored) -> TableEntry:
    """Its entry; who reads the table later sees what was committed last."""
    database, name = stored.name.split(".", 1)
    owner = str(storage.root)
    if stored.provider == VIEW_PROVIDER:
        options = {"pipeline": str(storage.groups(stored.name, stored.version)), "view": name}
        return TableEntry(database, name, stored.provider, stored.schema, owner, None, options, stored.comment)
    location = storage.results(stored) if stored.how == "groups" else storage.directory(stored.name, stored.version)
    options = {"recursiveFileLookup": "true"}
    return TableEntry(database, name, stored.provider, stored.schema, owner, str(location), options, stored.comment)
