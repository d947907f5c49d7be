"""Schemas: their ids, which mean the same for ever, and the versions that a stream has of its own."""

from mainstem.core.errors import InvalidPayload, InvalidRequest, Refused
from mainstem.core.limits import SCHEMA_VERSIONS_MAX
from mainstem.log.flush import DescribeSchema, Done, Outcome, SetSchema
from mainstem.log.ledger.base import SchemaRow, StreamRow, VersionRow
from mainstem.log.ledger.pending import PendingRows

# Ids are numbers of 32 bits.
SCHEMA_ID_MAX = (1 << 32) - 1


def set_next(rows: PendingRows, command: SetSchema) -> Outcome:
    row = rows.open_stream(command.stream)
    if command.version != row.schema_version + 1:
        raise Refused(f"stream {row.name!r} has version {row.schema_version} of its schema by now; check against it")
    if command.version > SCHEMA_VERSIONS_MAX:
        raise InvalidRequest(f"stream {row.name!r} has {SCHEMA_VERSIONS_MAX} versions of its schema, the limit")
    schema = schema_id_of(rows, command.schema, command.fingerprint)
    rows.changes.versions.append(VersionRow(row.id, command.version, schema, command.created_us))
    changed = row._replace(schema_id=schema, schema_version=command.version)
    given = {name: value for name in ("compatibility", "key", "index") if (value := getattr(command, name)) is not None}
    changed = changed._replace(**given)
    rows.changes.streams[row.id] = changed
    return Done(row.id)


def describe(rows: PendingRows, command: DescribeSchema) -> Outcome:
    return Done()


def schema_id_of(rows: PendingRows, arrow: bytes, fingerprint: bytes) -> int:
    """The id of a schema; a new one if it was never seen."""
    for row in rows.changes.schemas.values():
        if row.fingerprint == fingerprint:
            return row.id
    found = rows.current.ledger.schema_with(fingerprint)
    if found is None:
        found = max(rows.current.schema_id_max, *rows.changes.schemas, 0) + 1
        if found > SCHEMA_ID_MAX:
            raise InvalidRequest(f"the log has had {SCHEMA_ID_MAX} schemas, which is the limit")
        rows.changes.schemas[found] = SchemaRow(found, arrow, fingerprint)
    return found


def require_schema(rows: PendingRows, stream: StreamRow, schema: int) -> None:
    """An older version's: rows of it are welcome for ever."""
    new = (version.schema_id for version in rows.changes.versions if version.stream == stream.id)
    if schema not in rows.current.schemas_of(stream.id) and schema not in new:
        raise InvalidPayload(f"stream {stream.name!r} never had schema {schema}; look the stream up again")
