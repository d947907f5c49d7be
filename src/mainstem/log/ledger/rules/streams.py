"""Streams: created, altered, given more shards, deleted, forgotten."""

from mainstem.core.errors import InvalidRequest, Refused, StreamExists
from mainstem.core.limits import BARRIERS_PER_STREAM_MAX, SHARDS_PER_STREAM_MAX, STREAMS_MAX
from mainstem.log.flush import AlterStream, CreateStream, DeleteStream, Done, ForgetStream, Outcome
from mainstem.log.ledger.base import GenerationRow, StreamRow, VersionRow
from mainstem.log.ledger.pending import PendingRows
from mainstem.log.ledger.rules.groups import leave_stream
from mainstem.log.ledger.rules.schemas import schema_id_of


def create(rows: PendingRows, command: CreateStream) -> Outcome:
    if rows.named(command.name) is not None:
        raise StreamExists(f"stream {command.name!r} exists already")
    if rows.current.stream_count + len(rows.changes.streams) >= STREAMS_MAX:
        raise InvalidRequest(f"the log has {STREAMS_MAX} streams, which is the limit; delete some first")
    if not 1 <= command.shards <= SHARDS_PER_STREAM_MAX:
        raise InvalidRequest(f"a stream has 1 to {SHARDS_PER_STREAM_MAX} shards, not {command.shards}")
    stream = max(rows.current.stream_id_max, *rows.changes.streams, 0) + 1
    schema = schema_id_of(rows, command.schema, command.fingerprint) if command.schema else 0
    rows.changes.streams[stream] = StreamRow(
        id=stream,
        uuid=command.uuid,
        name=command.name,
        shards=command.shards,
        hash=command.hash,
        generation=0,
        schema_id=schema,
        retention_us=command.retention_us,
        created_us=command.created_us,
        deleted_us=0,
        retention_bytes=command.retention_bytes,
        cleanup=command.cleanup,
        tombstone_us=command.tombstone_us,
        schema_version=1 if schema else 0,
        key=command.key,
        index=command.index,
        compatibility=command.compatibility,
    )
    if schema:
        rows.changes.versions.append(VersionRow(stream, 1, schema, command.created_us))
    rows.names[command.name] = stream
    return Done(stream)


def alter(rows: PendingRows, command: AlterStream) -> Outcome:
    row = rows.open_stream(command.stream)
    names = ("retention_us", "retention_bytes", "cleanup", "tombstone_us", "compatibility")
    given = {name: value for name in names if (value := getattr(command, name)) is not None}
    changed = row._replace(**given)
    is_other = command.shards is not None and command.shards != row.shards
    if changed.compacts and (is_other or row.generation):
        # A tombstone in a new shard would go, and leave an older record of its key in another one.
        raise InvalidRequest(
            f"stream {row.name!r}: a compacted stream keeps the number of shards that it began with, because every "
            "shard is compacted by itself; write to a new stream"
        )
    if command.shards is not None and is_other:
        changed = _reshard(rows, changed, command.shards)
    rows.changes.streams[row.id] = changed
    return Done(row.id)


def _reshard(rows: PendingRows, row: StreamRow, shards: int) -> StreamRow:
    if not row.shards < shards <= SHARDS_PER_STREAM_MAX:
        raise InvalidRequest(
            f"stream {row.name!r} has {row.shards} shards; it can get more, up to {SHARDS_PER_STREAM_MAX}, but "
            f"not {shards}"
        )
    before = [*rows.current.generations(row.id), *rows.changes.generations]
    barriers = sum(len(generation.barriers) for generation in before if generation.stream == row.id) + row.shards
    if barriers > BARRIERS_PER_STREAM_MAX:
        raise InvalidRequest(
            f"the number of shards of stream {row.name!r} has changed too often: readers would have "
            f"{barriers} barriers to keep, and {BARRIERS_PER_STREAM_MAX} is the limit; write to a new stream"
        )
    ends = tuple(rows.shard((row.id, shard)).next for shard in range(row.shards))
    rows.changes.generations.append(GenerationRow(row.id, row.generation + 1, shards, ends))
    return row._replace(shards=shards, generation=row.generation + 1)


def delete(rows: PendingRows, command: DeleteStream) -> Outcome:
    row = rows.open_stream(command.stream)
    rows.changes.streams[row.id] = row._replace(deleted_us=command.deleted_us)
    rows.names[row.name] = None
    leave_stream(rows, row.id)
    return Done(row.id)


def forget(rows: PendingRows, command: ForgetStream) -> Outcome:
    row = rows.current.stream(command.stream)
    if row is None:
        return Done()
    if not row.deleted_us or any(shard.bytes for shard in rows.current.shards_of(row)):
        raise Refused(f"stream {command.stream} is in use")
    rows.changes.forgotten_streams.append(command.stream)
    rows.changes.stream_id_max = max(rows.current.stream_id_max, *rows.changes.streams, 0)
    return Done(command.stream)
