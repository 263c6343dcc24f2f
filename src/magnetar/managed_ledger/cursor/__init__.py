"""Cursors: where a subscription reads, what it has acknowledged, and how both are stored and found again."""
