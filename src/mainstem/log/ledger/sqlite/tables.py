"""The tables of the ledger, their upgrade from an older format, and how a row goes into their columns and back."""

import json
import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from mainstem.core.delivery import Fingerprint
from mainstem.core.limits import PRODUCER_RECENT_MAX
from mainstem.log.ledger.base import (
    DeliveriesRow,
    Entry,
    JobKey,
    ProducerKey,
    ProducerRow,
    StreamRow,
    TransactionRow,
)

LEDGER_FORMAT: Final = 6

# What a ledger of format 1 had already, with the columns of today.
_SCHEMA_1 = """
CREATE TABLE meta(k TEXT PRIMARY KEY, v) WITHOUT ROWID;
CREATE TABLE applied(number INTEGER NOT NULL, block INTEGER NOT NULL, commit_position INTEGER NOT NULL);
CREATE TABLE streams(
    id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, name TEXT NOT NULL, shards INTEGER NOT NULL, hash TEXT NOT NULL,
    generation INTEGER NOT NULL, schema_id INTEGER NOT NULL, retention_us INTEGER NOT NULL, created_us INTEGER NOT NULL,
    deleted_us INTEGER NOT NULL, retention_bytes INTEGER NOT NULL, cleanup TEXT NOT NULL,
    tombstone_us INTEGER NOT NULL, schema_version INTEGER NOT NULL, key_columns TEXT NOT NULL,
    index_columns TEXT NOT NULL, compatibility TEXT NOT NULL);
CREATE UNIQUE INDEX streams_by_name ON streams(name) WHERE deleted_us = 0;
CREATE TABLE schemas(id INTEGER PRIMARY KEY, arrow BLOB NOT NULL, fingerprint BLOB NOT NULL UNIQUE);
CREATE TABLE generations(
    stream INTEGER, generation INTEGER, shards INTEGER NOT NULL, barriers BLOB NOT NULL,
    PRIMARY KEY(stream, generation)) WITHOUT ROWID;
CREATE TABLE shards(
    stream INTEGER, shard INTEGER, start INTEGER NOT NULL, next INTEGER NOT NULL, stable INTEGER NOT NULL,
    time_high INTEGER NOT NULL, bytes INTEGER NOT NULL, merged INTEGER NOT NULL, compacted INTEGER NOT NULL,
    PRIMARY KEY(stream, shard)) WITHOUT ROWID;
CREATE TABLE blocks(
    id INTEGER PRIMARY KEY, writer_epoch INTEGER NOT NULL, state TEXT NOT NULL, bytes INTEGER NOT NULL,
    live_bytes INTEGER NOT NULL, created_us INTEGER NOT NULL, dead_us INTEGER NOT NULL, rewrite_us INTEGER NOT NULL);
CREATE TABLE entries(
    stream INTEGER, shard INTEGER, base INTEGER, span INTEGER NOT NULL, count INTEGER NOT NULL, block INTEGER NOT NULL,
    position INTEGER NOT NULL, length INTEGER NOT NULL, time_high INTEGER NOT NULL, schema_id INTEGER NOT NULL,
    txn INTEGER NOT NULL, stats BLOB, PRIMARY KEY(stream, shard, base)) WITHOUT ROWID;
CREATE TABLE producers(
    pid INTEGER, stream INTEGER, shard INTEGER, epoch INTEGER NOT NULL, recent BLOB NOT NULL, seen_us INTEGER NOT NULL,
    PRIMARY KEY(pid, stream, shard)) WITHOUT ROWID;
CREATE TABLE txns(
    id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, epoch INTEGER NOT NULL, state TEXT NOT NULL,
    deadline_us INTEGER NOT NULL, touched BLOB NOT NULL);
"""
# What a ledger of format 2 has and one of format 1 had not, beside more columns.
_SCHEMA_2 = """
CREATE TABLE dead(
    block INTEGER, stream INTEGER, bytes INTEGER NOT NULL, PRIMARY KEY(block, stream)) WITHOUT ROWID;
CREATE TABLE restored(
    epoch INTEGER, stream INTEGER, shard INTEGER, stop INTEGER NOT NULL,
    PRIMARY KEY(epoch, stream, shard)) WITHOUT ROWID;
"""
# The same of format 3.
_SCHEMA_3 = """
CREATE TABLE stream_schemas(
    stream INTEGER, version INTEGER, schema_id INTEGER NOT NULL, created_us INTEGER NOT NULL,
    PRIMARY KEY(stream, version)) WITHOUT ROWID;
"""
# The same of format 4.
_SCHEMA_4 = """
CREATE TABLE groups(
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, generation INTEGER NOT NULL, created_us INTEGER NOT NULL,
    changed_us INTEGER NOT NULL);
CREATE TABLE group_shards(
    group_id INTEGER, stream INTEGER, shard INTEGER, offset INTEGER NOT NULL, committed_us INTEGER NOT NULL,
    owner INTEGER NOT NULL, since INTEGER NOT NULL, PRIMARY KEY(group_id, stream, shard)) WITHOUT ROWID;
CREATE TABLE transactions(id INTEGER PRIMARY KEY, ended_us INTEGER NOT NULL, offsets BLOB NOT NULL);
CREATE INDEX transactions_by_time ON transactions(ended_us);
CREATE TABLE writers(name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, seen_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE moments(
    stream INTEGER, time_us INTEGER, ends BLOB NOT NULL, PRIMARY KEY(stream, time_us)) WITHOUT ROWID;
"""
# The same of format 5.
_SCHEMA_5 = """
CREATE TABLE access(
    kind TEXT, name TEXT, value BLOB NOT NULL, PRIMARY KEY(kind, name)) WITHOUT ROWID;
"""
# The same of format 6.
_SCHEMA_6 = """
CREATE TABLE deliveries(
    stream INTEGER, job TEXT, seen_us INTEGER NOT NULL, recent BLOB NOT NULL,
    PRIMARY KEY(stream, job)) WITHOUT ROWID;
CREATE INDEX deliveries_by_time ON deliveries(seen_us);
"""
SCHEMA = _SCHEMA_1 + _SCHEMA_2 + _SCHEMA_3 + _SCHEMA_4 + _SCHEMA_5 + _SCHEMA_6

# From format 1 to 2. The database puts new columns last, which is where the schema above has them.
_UPGRADE_1 = (
    """
ALTER TABLE streams ADD COLUMN retention_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE streams ADD COLUMN cleanup TEXT NOT NULL DEFAULT 'delete';
ALTER TABLE streams ADD COLUMN tombstone_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE shards ADD COLUMN merged INTEGER NOT NULL DEFAULT 0;
ALTER TABLE shards ADD COLUMN compacted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE blocks ADD COLUMN dead_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE blocks ADD COLUMN rewrite_us INTEGER NOT NULL DEFAULT 0;
"""
    + _SCHEMA_2
    # A block that nothing points into says since when. It was sealed by now; nothing asks for the exact time.
    + "UPDATE blocks SET dead_us = created_us WHERE state = 'sealed' AND live_bytes = 0;"
)

# From format 2 to 3.
_UPGRADE_2 = (
    """
ALTER TABLE streams ADD COLUMN schema_version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE streams ADD COLUMN key_columns TEXT NOT NULL DEFAULT '[]';
ALTER TABLE streams ADD COLUMN index_columns TEXT NOT NULL DEFAULT '[]';
ALTER TABLE streams ADD COLUMN compatibility TEXT NOT NULL DEFAULT 'backward';
"""
    + _SCHEMA_3
)

# From format 3 to 4. Nobody ever wrote to the table of cursors.
_UPGRADE_3 = "DROP TABLE cursors;" + _SCHEMA_4
UPGRADES = {1: _UPGRADE_1, 2: _UPGRADE_2, 3: _UPGRADE_3, 4: _SCHEMA_5, 5: _SCHEMA_6}

ENTRY_COLUMNS = "stream, shard, base, span, count, block, position, length, time_high, schema_id, txn, stats"
STREAM_COLUMNS = (
    "id, uuid, name, shards, hash, generation, schema_id, retention_us, created_us, deleted_us, retention_bytes, "
    "cleanup, tombstone_us, schema_version, key_columns, index_columns, compatibility"
)
SHARD_COLUMNS = "start, next, stable, time_high, bytes, merged, compacted"
BLOCK_COLUMNS = "id, writer_epoch, state, bytes, live_bytes, created_us, dead_us, rewrite_us"
# What few groups have stands in another table, by their number.
HOLD_PREFIX = "hold_us "
GROUP_COLUMNS = (
    f"id, name, generation, created_us, changed_us, coalesce((SELECT v FROM meta WHERE k = '{HOLD_PREFIX}' || id), 0)"
)
GROUP_SHARD_COLUMNS = "offset, committed_us, owner, since"
_PAIR = struct.Struct("<QQ")
_SHARD_OFFSETS = struct.Struct("<QQQQ")
_encode = msgspec.msgpack.Encoder().encode
_recent = msgspec.msgpack.Decoder(tuple[tuple[int, Fingerprint], ...])
_PAIRS = tuple(struct.Struct(f"<{2 * count}Q") for count in range(PRODUCER_RECENT_MAX + 1))


def stream_row(row: Sequence[Any]) -> StreamRow:
    """The row of a stream from its columns, in which lists of names are JSON; those of an older format are fewer."""
    return StreamRow(*row[:14], *(tuple(json.loads(names)) for names in row[14:16]), *row[16:])


def stream_values(row: StreamRow) -> tuple[Any, ...]:
    return (*row[:14], json.dumps(row.key), json.dumps(row.index), *row[16:])


def unpack_barriers(barriers: bytes) -> tuple[int, ...]:
    """The offsets of a row of generations or of moments."""
    return struct.unpack(f"<{len(barriers) // 8}Q", barriers)


def pack_barriers(barriers: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(barriers)}Q", *barriers)


def entry_row(row: tuple[Any, ...]) -> Entry:
    return Entry._make((*row[:-1], row[-1] or b""))


def producer_values(item: tuple[ProducerKey, ProducerRow]) -> tuple[Any, ...]:
    (pid, stream, shard), row = item
    recent = _PAIRS[len(row.recent)].pack(*chain.from_iterable(row.recent))
    return (pid, stream, shard, row.epoch, recent, row.seen_us)


def producer_row(row: Sequence[Any]) -> ProducerRow:
    epoch, recent, seen = row
    return ProducerRow(epoch, tuple(_PAIR.iter_unpack(recent)), seen)


def transaction_values(item: tuple[int, TransactionRow]) -> tuple[Any, ...]:
    number, row = item
    return (number, row.ended_us, b"".join(_SHARD_OFFSETS.pack(*offsets) for offsets in row.offsets))


def transaction_row(row: Sequence[Any]) -> TransactionRow:
    ended_us, offsets = row
    return TransactionRow(ended_us, tuple(_SHARD_OFFSETS.iter_unpack(offsets)))


def deliveries_values(item: tuple[JobKey, DeliveriesRow]) -> tuple[Any, ...]:
    key, row = item
    return (*key, row.seen_us, _encode(row.recent))


def deliveries_row(row: Sequence[Any]) -> DeliveriesRow:
    seen_us, recent = row
    return DeliveriesRow(seen_us, _recent.decode(recent))
