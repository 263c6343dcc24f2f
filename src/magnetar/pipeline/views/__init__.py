"""Materialized views: what a catalog becomes, and the epochs that keep it up to date."""
