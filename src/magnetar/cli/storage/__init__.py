"""Commands on ledgers, bookies, metadata and backups."""
