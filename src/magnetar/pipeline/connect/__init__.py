"""Topics as a PySpark data source, `format("magnetar")` and `format("pulsar")`, through the official client; no jar."""
