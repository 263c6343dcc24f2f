"""Tools to test code that uses Pulsar: a pytest plugin with a real server, and the server process as a class.

The plugin (`magnetar.testing.plugin`) is found by pytest as soon as magnetar is installed.
"""
