"""The `magnetar` command, also as `python -m magnetar`."""

import sys

from magnetar.cli.interrupts import interrupts_end_the_process

with interrupts_end_the_process():
    from magnetar.cli.main import EXIT_INTERRUPTED, run


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        sys.exit(run())
    except KeyboardInterrupt:  # a second Ctrl-C, while the command was already ending
        raise SystemExit(EXIT_INTERRUPTED) from None


if __name__ == "__main__":
    main()
