"""The `magnetar` command.

Owns: flags, what is printed, exit codes (0 done, 1 failed with one clear line on stderr, 2 wrong usage, 130 Ctrl-C).
Entry point: `magnetar.__main__:main`. Each command is a module of its own, imported when it is called, so that help stays fast.
"""
