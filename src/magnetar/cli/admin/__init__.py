"""Commands of pulsar-admin: what a running server is asked to show or to change."""
