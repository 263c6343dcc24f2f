"""A cluster of real processes on this machine, all below one directory: `magnetar cluster`, and tests.

`plan` is what there shall be (a file in the directory), `probe` what there is (the operating system's own list of processes),
`cluster` brings the two together. Nothing stays behind that a crash of the command could leave wrong.
"""
