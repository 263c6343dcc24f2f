"""PostgreSQL's SQL as DuckDB's: what a statement reads, what it may read, and what the system catalogs answer."""
