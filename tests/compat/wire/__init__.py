"""The same requests to this server and to an Apache Pulsar: run by tools/wire_differences.py."""
