"""The command `mainstem`: one file per command. They parse, wire and print; what they do is done elsewhere.

Whatever a command needs that is slow to import is imported when it runs, so that `mainstem --help` answers at once.
"""

import sys


def main() -> int:
    """Run the command line of this process; the exit code (docs/cli.md lists them)."""
    from mainstem.cli.app import run

    return run(sys.argv[1:])
