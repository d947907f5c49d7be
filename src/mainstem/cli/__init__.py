"""The command `mainstem`: one file per command. They parse, wire and print; what they do is done elsewhere.

Whatever a command needs that is slow to import is imported when it runs, so that `mainstem --help` answers at once.
"""

import os
import sys


def main() -> int:
    """Run the command line of this process; the exit code (docs/cli.md lists them)."""
    _open_standard_streams()
    from mainstem.cli.app import run

    return run(sys.argv[1:])


def _open_standard_streams() -> None:
    """A shell may start us without some of them (`<&-`): files and sockets opened later would get their numbers."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, which is this one.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  # as long as the process
