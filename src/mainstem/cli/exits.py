"""How a command ends: the exit codes, and the one line on standard error that explains a failure."""

from enum import IntEnum
from typing import Final

from mainstem.core.errors import (
    ConnectionLost,
    DeadlineExceeded,
    DiskFull,
    FolderLocked,
    IncompatibleSchema,
    InvalidCursor,
    InvalidPayload,
    InvalidRecord,
    InvalidRequest,
    MainstemError,
    ProtocolError,
    ReadOnly,
    RecordTooLarge,
    Refused,
    SchemaMismatch,
    ServerStopping,
    StreamDeleted,
    StreamExists,
    Unavailable,
    UnknownGroup,
    UnknownStream,
)


class ExitCode(IntEnum):
    """What a script may rely on."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    CANNOT_CONNECT = 4
    REFUSED = 5
    # Of `mainstem doctor`; damage also of `mainstem backup --even-damaged`.
    WARNINGS = 6
    DAMAGE = 7
    INTERRUPTED = 130
    TERMINATED = 143


# The first class that fits decides.
_CODES: Final[tuple[tuple[type[MainstemError], ExitCode], ...]] = (
    (UnknownStream, ExitCode.NOT_FOUND),
    (UnknownGroup, ExitCode.NOT_FOUND),
    (StreamDeleted, ExitCode.NOT_FOUND),
    (StreamExists, ExitCode.REFUSED),
    (IncompatibleSchema, ExitCode.REFUSED),
    (Refused, ExitCode.REFUSED),
    (DiskFull, ExitCode.REFUSED),
    (Unavailable, ExitCode.CANNOT_CONNECT),
    (InvalidPayload, ExitCode.FAILURE),
    (InvalidRecord, ExitCode.FAILURE),
    (RecordTooLarge, ExitCode.FAILURE),
    (SchemaMismatch, ExitCode.FAILURE),
    (ProtocolError, ExitCode.FAILURE),
    (InvalidRequest, ExitCode.USAGE),
)

# What to do next, where the error's own words do not say it or say it in Python.
_HINTS: Final[tuple[tuple[type[MainstemError], str], ...]] = (
    (StreamDeleted, "mainstem stream list shows what there is"),
    (UnknownGroup, "mainstem groups list shows what there is"),
    (InvalidCursor, "give another --start, or remove the cursor file to begin anew"),
    (ReadOnly, "use --url to write through the server that has the folder"),
    (FolderLocked, "use --url to go through the server that has it"),
    (ServerStopping, "try again when it is back"),
    (DeadlineExceeded, "try again; if it happens often, look at the server's load and disk"),
    (ConnectionLost, "or name another with --url, or a folder with --data"),
)


class UsageProblem(Exception):
    """Options that do not fit together: exit code 2."""


class Failure(Exception):
    """A command that did its work and found the result bad: exit code 1, with this text."""


def code_of(error: BaseException) -> ExitCode:
    """The exit code that tells a script what kind of error this is."""
    if isinstance(error, UsageProblem):
        return ExitCode.USAGE
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILURE)


def explain(error: BaseException) -> str:
    """One line: what happened, where, and what to do next."""
    text = (str(error) or type(error).__name__).replace("exist_ok=True", "--exist-ok")
    if isinstance(error, OSError) and not isinstance(error, MainstemError):
        text = ": ".join(filter(None, (_shown(error.filename), error.strerror))) or text
    elif not isinstance(error, MainstemError | UsageProblem | Failure):
        text = f"{type(error).__name__}: {text}; this is a bug, please report it (MAINSTEM_DEBUG=1 shows more)"
    where = "; ".join(getattr(error, "__notes__", ()))
    hint = next((hint for kind, hint in _HINTS if isinstance(error, kind)), "")
    parts = [text.rstrip(". ") + (f" [{where}]" if where else "")]
    if hint and hint not in text:
        parts.append(hint)
    return "; ".join(" ".join(part.split()) for part in parts)


def _shown(filename: object) -> str:
    return "" if filename is None else str(filename)
