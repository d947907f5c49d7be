"""Planted bugs: the mistakes that logs have lost data by, put into this one on purpose, to prove that a test sees them.

A suite that has never been red says little. Each bug here is a context manager that patches the product in this
process, and in child processes started through `command`; it is no setting, and nothing of the product knows of it.

    with planted.skip_dedupe():
        assert run(seed=1, trials=20, folder=tmp_path).findings

Not for use with several threads: a bug is in force for the whole process while its block lasts.
"""

import fcntl
import importlib
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final

import msgspec

from mainstem.access.authority import Authority
from mainstem.cluster.group import Group
from mainstem.consume.barriers import Barriers
from mainstem.core import bloom, payload, schema
from mainstem.core.batch import Batch, Buffer
from mainstem.core.errors import FolderUnusable, InvalidSchema, LedgerDamaged, ProtocolError
from mainstem.log import (
    backup_folder,
    batcher,
    compaction,
    cooling,
    disk,
    folder,
    reader,
    recovery,
    restore,
    scan,
    snapshots,
    walk,
)
from mainstem.log.blocks.local import LocalBlockWriter
from mainstem.log.frame import FrameHeader
from mainstem.log.ledger.base import DeliveriesRow
from mainstem.log.ledger.rules import appends, groups, transactions
from mainstem.log.ledger.sqlite import SqliteLedger, SqliteLedgerReader
from mainstem.log.shared_reads import SharedReads
from mainstem.log.upgrade import Backup
from mainstem.produce.gateway import Gateway
from mainstem.registry import promotion
from mainstem.server import server
from mainstem.transport.wire import MessageReader

_MISSING: Final[Any] = object()
# What is planted in this process now, in the order in which it was.
_active: list[str] = []

Bug = Callable[[], AbstractContextManager[None]]
BUGS: Final[dict[str, Bug]] = {}


def _bug(planting: Callable[[], Iterator[None]]) -> Bug:
    """Register a bug under its name and note while it is in force."""
    name = planting.__name__
    patching = contextmanager(planting)

    @contextmanager
    @wraps(planting)
    def planted() -> Iterator[None]:
        with patching():
            _active.append(name)
            try:
                yield
            finally:
                _active.remove(name)

    BUGS[name] = planted
    return planted


@contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name, _MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if original is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


# ------------------------------------------------------------------------------------------------------ the writer


@_bug
def ack_before_write() -> Iterator[None]:
    """A flush is acknowledged while its bytes are still in the process: they are written along with the next one."""
    append, close = LocalBlockWriter.append, LocalBlockWriter.close
    waiting: dict[LocalBlockWriter, list[Buffer]] = {}

    def catch_up(writer: LocalBlockWriter) -> None:
        earlier = waiting.pop(writer, [])
        # The position counts them already.
        writer.position -= sum(len(buffer) for buffer in earlier)
        append(writer, earlier)

    def append_late(writer: LocalBlockWriter, buffers: Sequence[Buffer]) -> None:
        catch_up(writer)
        waiting[writer] = list(buffers)
        writer.position += sum(len(buffer) for buffer in buffers)

    def close_late(writer: LocalBlockWriter) -> None:
        catch_up(writer)
        close(writer)

    with _patched(LocalBlockWriter, "append", append_late), _patched(LocalBlockWriter, "close", close_late):
        yield


@_bug
def ack_before_sync() -> Iterator[None]:
    """Bytes are written and acknowledged, and synced whenever the kernel gets to it."""
    whole = disk._pwritev

    def unsynced(fd: int, buffers: Sequence[Buffer], position: int, *, durably: bool) -> int:
        return whole(fd, buffers, position, durably=False)

    with _patched(disk, "_pwritev", unsynced), _patched(disk, "_sync", lambda fd: None):
        yield


@_bug
def swallow_write_error() -> Iterator[None]:
    """An error of the disk is noted by nobody, and the flush is acknowledged."""
    append = LocalBlockWriter.append

    def careless(writer: LocalBlockWriter, buffers: Sequence[Buffer]) -> None:
        end = writer.position + sum(len(buffer) for buffer in buffers)
        try:
            append(writer, buffers)
        except OSError:
            writer.position = end

    with _patched(LocalBlockWriter, "append", careless):
        yield


@_bug
def fence_when_full() -> Iterator[None]:
    """A disk without room is taken for one that fails: the log stops for good."""
    with _patched(batcher, "is_out_of_space", lambda error: False):
        yield


@_bug
def skip_dedupe() -> Iterator[None]:
    """A batch that is sent again is appended again."""
    with _patched(appends, "original_base", lambda header, row: None):
        yield


@_bug
def skip_lock() -> Iterator[None]:
    """Two processes may write one folder."""

    class Unlocked:
        LOCK_EX, LOCK_NB = fcntl.LOCK_EX, fcntl.LOCK_NB

        @staticmethod
        def flock(fd: int, operation: int) -> None:
            return None

    with _patched(folder, "fcntl", Unlocked):
        yield


# -------------------------------------------------------------------------------------------------------- recovery


@_bug
def skip_payload_check() -> Iterator[None]:
    """Replay takes a flush for whole when its commit frame is, payloads unseen."""
    with _patched(scan.BlockScanner, "_damage", lambda scanner, position: None):
        yield


@_bug
def trust_ledger() -> Iterator[None]:
    """The ledger's files are used whatever their checksums and the commit frames say."""
    with ExitStack() as stack:
        stack.enter_context(_patched(recovery, "_require_trusted", lambda *args: None))
        stack.enter_context(_patched(recovery.Recovery, "_check_wal", lambda self: 1))
        stack.enter_context(_patched(SqliteLedger, "check_pages", lambda self: None))
        yield


@_bug
def replay_everything() -> Iterator[None]:
    """The ledger is made anew at every start, from the first flush on, whatever it and its snapshots say."""
    open_ledger = recovery.Recovery._open_ledger
    seen: set[Any] = set()

    def distrust(self: Any) -> Any:
        if self in seen or not self._numbers:
            return open_ledger(self)
        seen.add(self)
        return LedgerDamaged("it is not even looked at")

    with (
        _patched(recovery.Recovery, "_open_ledger", distrust),
        _patched(snapshots.Snapshots, "restore", lambda self, target: None),
    ):
        yield


@_bug
def believe_blocks() -> Iterator[None]:
    """Where the blocks end before the ledger does, the ledger is made to agree, as if nothing had been there."""
    after = recovery.Recovery._after

    def agree(self: Any, place: Any, journal: Any) -> int | None:
        try:
            return after(self, place, journal)
        except FolderUnusable as error:
            raise LedgerDamaged(str(error)) from error

    with _patched(recovery.Recovery, "_after", agree), _patched(recovery.Recovery, "_claimed", lambda self: 0):
        yield


@_bug
def upgrade_before_backup() -> Iterator[None]:
    """A folder says that it is of the new format before it is kept as it was."""
    whole = folder.Folder._upgrade

    def hasty(self: Any) -> None:
        self._write_identity()
        whole(self)

    with _patched(folder.Folder, "_upgrade", hasty):
        yield


@_bug
def keep_in_place() -> Iterator[None]:
    """The backup before an upgrade has its name before it is whole."""
    init = Backup.__init__

    def hasty(self: Any, *args: Any) -> None:
        init(self, *args)
        self._part = self.path

    with _patched(Backup, "__init__", hasty):
        yield


# --------------------------------------------------------------------------------------------------------- backups


@_bug
def restore_unchecked() -> Iterator[None]:
    """What lies in a backup is restored, whatever its checksums say."""

    def believe(found: Any, path: Path) -> None:
        list(found)

    with _patched(backup_folder, "require_no_problems", believe), _patched(restore, "require_no_problems", believe):
        yield


@_bug
def copy_in_place() -> Iterator[None]:
    """A new copy of a block takes the place of the one that the last backup has."""
    name = property(lambda block: f"blocks/{block.number:016d}-00000000.block")
    with _patched(backup_folder.StoredBlock, "name", name):
        yield


@_bug
def forget_deliveries() -> Iterator[None]:
    """Every delivery of a job counts as new, whether the log has it already or not."""

    def take(rows: Any, delivery: Any, time_us: int) -> DeliveriesRow:
        return DeliveriesRow(time_us, ((delivery.number, delivery.fingerprint),))

    with _patched(transactions, "with_delivery", take):
        yield


# --------------------------------------------------------------------------------------------------------- readers


@_bug
def ignore_checksum() -> Iterator[None]:
    """Payloads are handed out as they lie on the disk."""

    def unchecked(data: Buffer, at: int, header: FrameHeader) -> memoryview:
        begin = at + header.header_len
        return memoryview(data)[begin : begin + header.stored_len]

    with ExitStack() as patches:
        for module in (scan, reader, walk):
            patches.enter_context(_patched(module, "payload_of", unchecked))
        yield


@_bug
def stale_reader() -> Iterator[None]:
    """A reader of a folder is not told that another process wrote to it."""
    with _patched(SqliteLedgerReader, "data_version", lambda self: 1):
        yield


@_bug
def run_ahead() -> Iterator[None]:
    """A reader of a stream that got more shards does not wait until it has what was written before."""
    with (
        _patched(Barriers, "holds", lambda self, shard, offset: False),
        _patched(Barriers, "allowed", lambda self, shard, batches: batches),
    ):
        yield


@_bug
def forget_aliases() -> Iterator[None]:
    """Rows from before a column was renamed are read as if they had nothing in it."""

    def by_name(readers: Any, writers: Any) -> list[Any]:
        names = {field.name: field for field in writers}
        return [(field, names.get(field.name)) for field in readers]

    with _patched(promotion, "matched", by_name):
        yield


@_bug
def trust_messages() -> Iterator[None]:
    """The prefix of a message is believed: its kind, its length."""
    with _patched(MessageReader, "_check_prefix", lambda self, length, kind, zeros, header_len: None):
        yield


@_bug
def allow_everything() -> Iterator[None]:
    """Whether who asks may is not looked at."""
    with (
        _patched(Authority, "allow", lambda self, principal, action, stream="": None),
        _patched(Authority, "allow_for_any", lambda self, principal, action: None),
    ):
        yield


@_bug
def wait_for_ever() -> Iterator[None]:
    """A client that says nothing is waited for."""
    with _patched(server, "_HELLO_SECONDS", 1e9):
        yield


@_bug
def end_on_garbage() -> Iterator[None]:
    """What a client sends wrong is taken for an error of one's own, and the process ends."""
    received = MessageReader.received

    def fragile(self: MessageReader, count: int) -> Any:
        try:
            return received(self, count)
        except ProtocolError:
            os._exit(70)

    with _patched(MessageReader, "received", fragile):
        yield


@_bug
def trust_payloads() -> Iterator[None]:
    """A payload goes to pyarrow without being looked at."""

    def believe(message: Any, shape: Any, codec: Any, count: int) -> int:
        return int(message.size)

    with _patched(payload, "inspect", believe):
        yield


@_bug
def believe_metadata() -> Iterator[None]:
    """What a schema says of its fields is not looked at before it is used."""

    def believe(path: str, metadata: Any) -> None:
        return

    with _patched(schema, "_check_metadata", believe):
        yield


@_bug
def stumble_over_schemas() -> Iterator[None]:
    """Bytes that are no schema are taken for an error of one's own."""
    parse = schema._parse

    def fragile(serialized: bytes) -> schema.Schema:
        try:
            return parse(serialized)
        except InvalidSchema as error:
            raise RuntimeError(str(error)) from error

    with _patched(schema, "_parse", fragile):
        yield


@_bug
def believe_json() -> Iterator[None]:
    """Bytes for a stream of rows are stored without being looked at."""
    with _patched(Gateway, "_check_json", lambda self, row, header, batch: None):
        yield


@_bug
def predicates_without_limits() -> Iterator[None]:
    """A predicate is parsed however long it is."""
    from mainstem.core.predicate import grammar

    with (
        _patched(grammar, "PREDICATE_BYTES_MAX", 1 << 40),
        _patched(grammar, "PREDICATE_TOKENS_MAX", 1 << 40),
        _patched(grammar, "PREDICATE_WORDS_MAX", 1 << 40),
    ):
        yield


@_bug
def overflow_fails_the_batch() -> Iterator[None]:
    """One row whose numbers do not fit ends the evaluation of all."""
    import pyarrow.compute as pc

    from mainstem.core.predicate import application

    raising = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
    with _patched(application, "_KERNELS", raising):
        yield


# --------------------------------------------------------------------------------------------------------- sharing


@_bug
def believe_members() -> Iterator[None]:
    """Whoever says that it has read so far in a group is believed, whether the shard is its own or not."""
    moved = groups.moved_cursors

    def believe(rows: Any, cursors: Any, time_us: int) -> Any:
        group = rows.group(cursors.group)
        found: dict[Any, Any] = {}
        for place in cursors.offsets:
            row = rows.group_shard((group.id, *place[:2]))
            owner = groups.NOBODY if row is None else row.owner
            said = msgspec.structs.replace(cursors, member=owner, offsets=(place,), generation=None)
            found |= moved(rows, said, time_us)
        return found

    with _patched(groups, "moved_cursors", believe), _patched(transactions, "moved_cursors", believe):
        yield


@_bug
def forget_cursors() -> Iterator[None]:
    """The next owner of a shard is told to begin at its beginning."""
    note = Group._note_owner

    def note_wrong(self: Group, unit: Any, owner: int, cursors: Any) -> None:
        note(self, unit, owner, dict.fromkeys(cursors, 0))

    with _patched(Group, "_note_owner", note_wrong):
        yield


@_bug
def write_beside_transactions() -> Iterator[None]:
    """What a transaction writes is visible at once, whatever becomes of it; only its cursors wait for the commit."""
    from mainstem.produce.transaction import StagingPort

    def append(self: Any, batches: Sequence[Batch], timeout: float, done: Any) -> None:
        numberless = {"producer": 0, "producer_epoch": 0, "sequence": 0}
        self._port.append_unacknowledged(
            [Batch(msgspec.structs.replace(batch.header, **numberless), batch.payload) for batch in batches]
        )
        done([0] * len(batches))

    with _patched(StagingPort, "append", append):
        yield


# --------------------------------------------------------------------------------------------------------- readers


@_bug
def read_for_each() -> Iterator[None]:
    """Every reader reads and checks for itself: nothing of what was read from blocks is kept for others."""
    with _patched(reader, "RECENT_READS_BYTES_MAX", 0), _patched(reader, "SHARED_READS_BYTES_MAX", 0):
        yield


@_bug
def push_without_credit() -> Iterator[None]:
    """A server pushes whatever there is, whether the reader has room for it or not."""
    from mainstem.server.subscription import PushSubscription

    with _patched(PushSubscription, "_credit", property(lambda self: 1 << 40, lambda self, value: None)):
        yield


@_bug
def share_what_was_erased() -> Iterator[None]:
    """What readers share is not let go of when a key is erased."""
    with _patched(SharedReads, "forget", lambda self, shard: None):
        yield


# ---------------------------------------------------------------------------------------------------------- upkeep


@_bug
def free_too_early() -> Iterator[None]:
    """A block goes as soon as nothing points into it, though a rebuild of the ledger would need it."""
    with _patched(snapshots.Snapshots, "needed_from", lambda self: 1 << 62):
        yield


@_bug
def sweep_too_much() -> Iterator[None]:
    """A start takes away cold files that entries point to."""
    sweep = cooling.sweep

    with _patched(cooling, "sweep", lambda blocks, known: sweep(blocks, ())):
        yield


@_bug
def compact_too_much() -> Iterator[None]:
    """Compaction takes the newest record of a key for one that has a newer."""
    learn = compaction.KeyIndex.learn

    def learn_wrong(self: compaction.KeyIndex, records: Any) -> None:
        learn(self, records._replace(offsets=records.offsets + 1))

    with _patched(compaction.KeyIndex, "learn", learn_wrong):
        yield


@_bug
def filter_too_little() -> Iterator[None]:
    """A filter lacks some of the values that are there, so that whoever looks for them passes their batch over."""
    build = bloom.build

    def build_wrong(hashes: Any, bytes_max: int) -> bytes:
        return build(hashes[1:], bytes_max)

    with _patched(bloom, "build", build_wrong):
        yield


# ------------------------------------------------------------------------------------------------------------- HTTP


@_bug
def forget_keys() -> Iterator[None]:
    """A request that is sent again with its key is written again."""
    from mainstem.server.http.posts import Posts

    with _patched(Posts, "_earlier", lambda self, info, key: None), _patched(appends, "original_base", _no_original):
        yield


def _no_original(header: Any, row: Any) -> None:
    return None


@_bug
def stumble_over_limits() -> Iterator[None]:
    """What a request says is believed to be a number."""
    from mainstem.server.http import reads

    with _patched(reads, "_limit_of", lambda text: None if text is None else int(text)):
        yield


@_bug
def stumble_over_arrow() -> Iterator[None]:
    """A message of an Arrow stream is believed to point into itself."""
    from mainstem.core.ipc_stream import IpcReader
    from mainstem.core.message import peek

    with _patched(IpcReader, "_peek", lambda self, metadata: peek(metadata)):
        yield


@_bug
def hoard_for_connections() -> Iterator[None]:
    """Memory is set aside for whoever connects."""
    from mainstem.server.http.listener import GuardedProtocol

    made = GuardedProtocol.connection_made

    def generous(self: Any, transport: Any) -> None:
        made(self, transport)
        self.hoard = bytearray(b"x") * (1 << 20)

    with _patched(GuardedProtocol, "connection_made", generous):
        yield


@_bug
def forget_loads() -> Iterator[None]:
    """Nobody asks a table which loads it has."""
    from mainstem.spark.jobs.lake import Lake

    with _patched(Lake, "number_of", lambda self, job: 0):
        yield


@_bug
def publish_what_is_planned() -> Iterator[None]:
    """The group of a query is told of a batch when it is planned, before it is done."""
    from mainstem.spark.group import QueryGroup
    from mainstem.spark.origin import opened
    from mainstem.spark.progress import QueryOffset
    from mainstem.spark.stream import StreamReader

    plan = StreamReader.partitions

    def plan_and_publish(self: Any, start: dict[str, Any], end: dict[str, Any]) -> Any:
        planned, after, info = plan(self, start, end), QueryOffset.from_json(end), self._look_up()
        if after is not None:
            group = QueryGroup(opened(self._options.access), self._options.group)
            group.publish(info, after.offsets, group.stand(info, after.offsets))
        return planned

    with _patched(StreamReader, "partitions", plan_and_publish):
        yield


# ------------------------------------------------------------------------------------------------------- processes


def active() -> tuple[str, ...]:
    """The names of the bugs in force now: what was prepared with other bugs cannot be used."""
    return tuple(_active)


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module in a child process, with the bugs that are in force here."""
    bugs = ["mainstem.testing.planted", ",".join(_active)] if _active else []
    return [sys.executable, "-m", *bugs, module, *arguments]


def main(arguments: Sequence[str]) -> None:
    """Run a module as `python -m` does, with bugs: NAME,NAME MODULE ARGUMENT..."""
    names, module, *rest = arguments
    with ExitStack() as stack:
        # As `python -m` would: modules are found from the working directory too.
        sys.path.insert(0, str(Path(os.getcwd())))
        # This module was loaded as __main__; the bugs in force must be known to the one that others import.
        bugs = importlib.import_module("mainstem.testing.planted").BUGS
        for name in names.split(","):
            stack.enter_context(bugs[name]())
        sys.argv = [module, *rest]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
