"""Rows into topics: encoded, numbered so that a repeated task adds nothing, and deduplicated by the broker."""
