"""Connections to files of a ledger: with page checksums, and with errors of ours."""

import errno
import functools
import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import apsw
import apsw.sqlite_extra

from mainstem.core.errors import Closed, LedgerDamaged

READ_BUSY_MS: Final = 5_000
# The index of the WAL is a file too, and has an error of its own for not being able to grow.
_NO_ROOM = (apsw.SQLITE_IOERR_SHMSIZE,)


@functools.cache
def load_checksum_vfs() -> None:
    """Make SQLite's checksum extension the default file system layer of this process, once."""
    connection = apsw.Connection(":memory:")
    apsw.sqlite_extra.load(connection, "cksumvfs")
    connection.close()


def connect_unchanging(path: Path) -> apsw.Connection:
    """For a file that nobody writes; nothing is made beside it."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags)


class Translated:
    """Turns SQLite's errors about bytes on disk into LedgerDamaged, those about room into what the system says when
    there is none, and a connection closed meanwhile into Closed."""

    def __init__(self, path: Path, db: apsw.Connection | None = None) -> None:
        self._path = path
        self._db = db

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            return
        if isinstance(error, apsw.ConnectionClosedError):
            raise Closed("the log was closed") from error
        if self._is_lack_of_room(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path)) from error
        if isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.IOError | apsw.SQLError | apsw.CantOpenError):
            raise LedgerDamaged(
                f"{self._path.name} is damaged ({error}); the next start of a writer rebuilds it from the blocks, or: "
                "mainstem doctor --rebuild"
            ) from error

    def _is_lack_of_room(self, error: Any) -> bool:
        if isinstance(error, apsw.FullError) or getattr(error, "extendedresult", 0) in _NO_ROOM:
            return True
        # SQLite knows a full disk, but takes a quota that is used up for a broken one.
        return isinstance(error, apsw.IOError) and self._db is not None and self._db.system_errno == errno.EDQUOT
