"""Helpers for tests: a real server process, raw frames, waiting for conditions. No pytest hooks live here."""
