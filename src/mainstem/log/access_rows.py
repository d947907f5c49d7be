"""The rows of a log that say who may do what, for whoever knows what they mean."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mainstem.core.errors import ReadOnly
from mainstem.log.flush import ChangeAccess
from mainstem.log.ledger.base import AccessKey, LedgerReader

if TYPE_CHECKING:
    from mainstem.log.log import Log


class ReadRows:
    """Those of a log that is only read, as they are at this moment."""

    version = 0

    def __init__(self, ledger: LedgerReader) -> None:
        self._rows = ledger.load_access()

    def rows(self) -> Mapping[AccessKey, bytes]:
        return self._rows

    def change(self, changes: Mapping[AccessKey, bytes | None]) -> None:
        raise ReadOnly("this hub only reads: another process writes the folder, or it was opened read_only")


class AccessRows:
    """Kept in the ledger and changed by flushes, like streams: durable, in every backup, one truth for all doors. Any
    thread; reading costs a look into memory."""

    def __init__(self, log: "Log") -> None:
        self._log = log

    @property
    def version(self) -> int:
        """Another number after every change."""
        return self._log.applier.times_access_changed

    def rows(self) -> Mapping[AccessKey, bytes]:
        return self._log.applier.access_rows()

    def change(self, changes: Mapping[AccessKey, bytes | None]) -> None:
        """All of these or none, durable when this returns."""
        self._log.execute(ChangeAccess(tuple((kind, name, value or b"") for (kind, name), value in changes.items())))
