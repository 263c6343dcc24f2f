"""Ranges of topics as Arrow batches: how far one goes, its entries, and their columns by the schema each was written with."""
