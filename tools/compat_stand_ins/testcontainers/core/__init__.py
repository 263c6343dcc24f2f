"""Stands in for the package of this name while `make compat` runs: the suite's containers become processes of this server."""
