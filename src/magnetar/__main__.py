"""`python -m magnetar`: the same as the `magnetar` command."""

try:
    from magnetar.cli.main import EXIT_INTERRUPTED, main
except KeyboardInterrupt:  # Ctrl-C before the command could take it
    raise SystemExit(130) from None

if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # once more, while it was already ending
        raise SystemExit(EXIT_INTERRUPTED) from None
