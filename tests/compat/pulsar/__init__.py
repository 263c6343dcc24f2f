"""Tests of the pipelines' connector with Apache Pulsar in the place of magnetar."""
