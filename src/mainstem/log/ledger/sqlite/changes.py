"""What one flush changes, as statements of SQL."""

import functools
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from mainstem.log.ledger.base import Changes, SharedChanges
from mainstem.log.ledger.sqlite.tables import (
    ENTRY_COLUMNS,
    HOLD_PREFIX,
    deliveries_values,
    pack_barriers,
    producer_values,
    stream_values,
    transaction_values,
)

Execute = Callable[[str, Sequence[Any]], Any]

# Rows in one INSERT.
_ROWS_PER_STATEMENT = 64


def store_changes(execute: Execute, changes: Changes) -> None:
    """All rows of one flush, within the transaction under way."""
    for dropped in changes.dropped:
        execute("DELETE FROM entries WHERE stream = ? AND shard = ? AND base >= ? AND base < ?", dropped)
    _insert(execute, f"INSERT INTO entries({ENTRY_COLUMNS})", changes.entries)
    _insert(execute, "INSERT OR REPLACE INTO shards", [(*key, *row) for key, row in changes.shards.items()])
    _insert(execute, "INSERT OR REPLACE INTO producers", [producer_values(item) for item in changes.producers.items()])
    _insert(execute, "INSERT OR REPLACE INTO streams", [stream_values(row) for row in changes.streams.values()])
    _insert(execute, "INSERT OR REPLACE INTO blocks", list(changes.blocks.values()))
    if changes.forget_producers_before_us:
        idle = (*changes.forget_producers_ids, changes.forget_producers_before_us)
        execute("DELETE FROM producers WHERE pid BETWEEN ? AND ? AND seen_us < ?", idle)
    if changes.moments:
        _store_moments(execute, changes)
    if changes.versions or changes.generations:
        _store_shape(execute, changes)
    if changes.dead or changes.forgotten_blocks or changes.forgotten_streams or changes.epoch:
        _store_rarities(execute, changes)
    if changes.shared is not None:
        _store_groups(execute, changes.shared)
        _store_transactions(execute, changes.shared)
    for (kind, name), value in changes.access.items():
        if value is None:
            execute("DELETE FROM access WHERE kind = ? AND name = ?", (kind, name))
        else:
            execute("INSERT OR REPLACE INTO access VALUES (?, ?, ?)", (kind, name, value))
    execute("UPDATE applied SET number = ?, block = ?, commit_position = ?", changes.applied)


def _store_shape(execute: Execute, changes: Changes) -> None:
    """What streams look like: their schemas and their shards."""
    _insert(execute, "INSERT INTO schemas", list(changes.schemas.values()))
    _insert(execute, "INSERT INTO stream_schemas", changes.versions)
    rows = [(*row[:3], pack_barriers(row.barriers)) for row in changes.generations]
    _insert(execute, "INSERT INTO generations", rows)


def _store_moments(execute: Execute, changes: Changes) -> None:
    rows = [(row.stream, row.time_us, pack_barriers(row.ends)) for row in changes.moments.values()]
    _insert(execute, "INSERT INTO moments", rows)
    for forgotten in changes.forgotten_moments.items():
        execute("DELETE FROM moments WHERE stream = ? AND time_us < ?", forgotten)


def _store_rarities(execute: Execute, changes: Changes) -> None:
    for (stream, block), size in changes.dead.items():
        sql = "INSERT INTO dead VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes"
        execute(sql, (block, stream, size))
        if size <= 0:
            execute("DELETE FROM dead WHERE block = ? AND stream = ? AND bytes = 0", (block, stream))
    for block in changes.forgotten_blocks:
        execute("DELETE FROM blocks WHERE id = ?", (block,))
        execute("DELETE FROM dead WHERE block = ?", (block,))
    for stream in changes.forgotten_streams:
        execute("DELETE FROM streams WHERE id = ?", (stream,))
        # Schemas stay: a reader may know one by its id, which then must not be another's.
        for table in ("shards", "dead", "restored", "stream_schemas", "generations", "moments", "deliveries"):
            execute(f"DELETE FROM {table} WHERE stream = ?", (stream,))
    _note_max(execute, "stream_id_max", changes.stream_id_max)
    _note_max(execute, "schema_id_max", changes.schema_id_max)
    if changes.epoch:
        rows = [(changes.epoch - 1, *key, stop) for key, stop in changes.epoch_ends.items()]
        _insert(execute, "INSERT OR REPLACE INTO restored", rows)
        execute("UPDATE meta SET v = ? WHERE k = 'epoch'", (changes.epoch,))


def _store_groups(execute: Execute, changes: SharedChanges) -> None:
    for stream in changes.ungrouped_streams:
        # By the groups, one after the other, because the rows are in their order.
        execute("DELETE FROM group_shards WHERE stream = ? AND group_id IN (SELECT id FROM groups)", (stream,))
    for group in changes.deleted_groups:
        execute("DELETE FROM groups WHERE id = ?", (group,))
        execute("DELETE FROM group_shards WHERE group_id = ?", (group,))
        _store_hold(execute, group, 0)
    _note_max(execute, "group_id_max", changes.group_id_max)
    _insert(execute, "INSERT OR REPLACE INTO groups", [row[:5] for row in changes.groups.values()])
    for row in changes.groups.values():
        _store_hold(execute, row.id, row.hold_us)
    rows = [(*key, *row) for key, row in changes.group_shards.items()]
    _insert(execute, "INSERT OR REPLACE INTO group_shards", rows)


def _store_hold(execute: Execute, group: int, hold_us: int) -> None:
    if hold_us:
        execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"{HOLD_PREFIX}{group}", hold_us))
    else:
        execute("DELETE FROM meta WHERE k = ?", (f"{HOLD_PREFIX}{group}",))


def _store_transactions(execute: Execute, changes: SharedChanges) -> None:
    limit = changes.forget_transactions_limit
    if limit:
        ended = "SELECT id FROM transactions WHERE ended_us < ? ORDER BY ended_us, id LIMIT ?"
        execute(f"DELETE FROM transactions WHERE id IN ({ended})", (changes.forget_transactions_before_us, limit))
        execute("DELETE FROM writers WHERE seen_us < ?", (changes.forget_writers_before_us,))
        execute("DELETE FROM deliveries WHERE seen_us < ?", (changes.forget_jobs_before_us,))
    rows = [transaction_values(item) for item in changes.transactions.items()]
    _insert(execute, "INSERT INTO transactions", rows)
    _insert(execute, "INSERT OR REPLACE INTO writers", [(name, *row) for name, row in changes.writers.items()])
    _insert(
        execute, "INSERT OR REPLACE INTO deliveries", [deliveries_values(item) for item in changes.deliveries.items()]
    )


def _note_max(execute: Execute, name: str, noted: int) -> None:
    if noted:
        execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, noted))


def _insert(execute: Execute, into: str, rows: Sequence[Sequence[Any]]) -> None:
    """Insert many rows in few statements: every statement lets go of the interpreter, and beside a busy thread it
    takes a switch interval to get it back."""
    for begin in range(0, len(rows), _ROWS_PER_STATEMENT):
        some = rows[begin : begin + _ROWS_PER_STATEMENT]
        execute(_insert_sql(into, len(some), len(some[0])), list(chain.from_iterable(some)))


@functools.cache
def _insert_sql(into: str, rows: int, columns: int) -> str:
    row = f"({','.join('?' * columns)})"
    return f"{into} VALUES {','.join([row] * rows)}"
