"""The numpy twins: the same numbers as the scalar modules, for arrays of keys. Imported by whoever uses them, never by the server."""
