"""Committed changes into topics."""
