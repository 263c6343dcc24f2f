"""Ledgers in BookKeeper's sense: the bookie that stores entries, the client that replicates them, and what both agree on."""
