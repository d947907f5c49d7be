"""`mainstem serve`: the server, in the foreground."""

from mainstem.cli.flags import with_settings
from mainstem.core.settings import Loaded


@with_settings("serve")
def serve(loaded: Loaded) -> int:
    """Serve the log in a folder to other processes.

    Ends after Ctrl-C or SIGTERM, when what is under way was answered. Once it accepts connections it prints one line
    on standard output, `ready` and the addresses as JSON, and nothing else there; log lines go to standard error.
    """
    from mainstem.server.main import run

    return run(loaded.settings)
