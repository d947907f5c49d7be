"""A quota that is used up, met by SQLite itself: a lack of room, and no damage."""

import ctypes
import errno
from collections.abc import Iterator
from contextlib import contextmanager

import apsw
import pytest

from mainstem.core.errors import LedgerDamaged
from mainstem.log.disk import is_out_of_space
from mainstem.log.flush import Flush, OpenBlock
from mainstem.log.ledger.apply import Applier
from mainstem.log.ledger.sqlite import SqliteLedger
from tests.unit.log.parts import LOG_UUID, NOW_US

_WRITE = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong, use_errno=True
)


@contextmanager
def writes_fail(number: int) -> Iterator[None]:
    """Every write of SQLite to a file gets this error from the system."""

    def fail(descriptor: int, data: int, size: int, position: int) -> int:
        ctypes.set_errno(number)
        return -1

    call = _WRITE(fail)
    layer = apsw.VFS("system-calls", "unix")
    before = {name: found for name in ("pwrite", "pwrite64", "write") if (found := layer.xGetSystemCall(name))}
    instead = ctypes.cast(call, ctypes.c_void_p).value
    assert instead is not None
    try:
        for name in before:
            layer.xSetSystemCall(name, instead)
        yield
    finally:
        for name, pointer in before.items():
            layer.xSetSystemCall(name, pointer)
        layer.unregister()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_flush_that_found_no_room_is_applied_when_there_is_some(tmp_path, number):
    ledger = SqliteLedger.create(tmp_path / "ledger.db", log_uuid=LOG_UUID, epoch=1)
    applier = Applier(ledger)
    flush = Flush(1, 1, 64, NOW_US, (OpenBlock(1, 1, NOW_US),))
    with writes_fail(number), pytest.raises(OSError, match="No space left") as error:
        applier.apply(flush)
    assert is_out_of_space(error.value)
    applier.apply(flush)
    assert ledger.applied().number == 1
    with writes_fail(number), pytest.raises(OSError, match="No space left"):
        ledger.checkpoint()
    assert ledger.checkpoint()
    ledger.close()


def test_a_disk_that_fails_is_no_lack_of_room(tmp_path):
    ledger = SqliteLedger.create(tmp_path / "ledger.db", log_uuid=LOG_UUID, epoch=1)
    with writes_fail(errno.EIO), pytest.raises(LedgerDamaged):
        Applier(ledger).apply(Flush(1, 1, 64, NOW_US, (OpenBlock(1, 1, NOW_US),)))
    ledger.close()
