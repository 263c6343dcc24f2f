"""`python -m magnetar.cli`: the same as `magnetar`."""

from __future__ import annotations

from magnetar.cli.main import main

main()
