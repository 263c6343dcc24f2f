"""`python -m magnetar`: the same as the `magnetar` command."""

from magnetar.cli.main import main

if __name__ == "__main__":
    main()
