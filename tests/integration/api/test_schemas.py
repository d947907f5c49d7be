"""Schemas of streams from the outside: given, changed, refused, and known for ever."""

import threading

import pyarrow as pa
import pytest

import mainstem
from mainstem.core.errors import (
    IncompatibleSchema,
    InvalidSchema,
    InvalidSetting,
    ReadOnly,
    StreamExists,
    UnknownStream,
)
from mainstem.core.limits import LIST_BYTES_MAX
from mainstem.core.schema import Schema
from mainstem.log.administration import COMPATIBILITIES
from mainstem.registry.compatibility import MODES
from mainstem.testing.server import ServerProcess

FIRST = pa.schema([("id", pa.int64()), ("city", pa.string())])
SECOND = FIRST.append(pa.field("amount", pa.float64()))
# Without a default, and not nullable: rows of before have no value for it.
BREAKING = FIRST.append(pa.field("amount", pa.float64(), nullable=False))


def test_a_stream_is_created_with_a_schema(hub):
    made = hub.streams.create("orders", schema=FIRST, key="id", index=["city"], compatibility="full")
    assert (made.schema_version, made.key, made.index, made.compatibility) == (1, ("id",), ("city",), "full")
    assert made.schema == Schema(FIRST)
    assert hub._port.schema(made.schema_id) == Schema(FIRST)
    found = hub.streams.get("orders")
    assert (found.schema_id, found.schema, found.key) == (made.schema_id, made.schema, ("id",))
    (listed,) = hub.streams.list()
    assert (listed.schema, listed.schema_id, listed.index) == (None, made.schema_id, ("city",))


def test_a_schema_may_be_given_in_other_forms(hub):
    made = hub.streams.create("orders", schema={"id": "int64", "city": "string"})
    assert made.schema == Schema(FIRST)


def test_a_stream_gets_its_first_schema_later(hub):
    hub.streams.create("orders")
    assert hub.streams.schemas("orders") == []
    assert hub.streams.set_schema("orders", FIRST).schema_version == 1


def test_versions_are_listed(hub):
    hub.streams.create("orders", schema=FIRST)
    changed = hub.streams.set_schema("orders", SECOND)
    assert (changed.schema_version, changed.schema) == (2, Schema(SECOND))
    found = hub.streams.schemas("orders")
    assert [version.version for version in found] == [1, 2]
    assert [version.schema for version in found] == [Schema(FIRST), Schema(SECOND)]
    assert found[0].created_us <= found[1].created_us
    with pytest.raises(UnknownStream):
        hub.streams.schemas("nobody")


def test_many_large_versions_are_listed_in_several_answers(hub):
    wide = pa.schema([(f"column_{index:04}" * 20, pa.int64()) for index in range(600)])
    hub.streams.create("orders", schema=wide, compatibility="none")
    for number in range(4):
        hub.streams.set_schema("orders", wide.append(pa.field(f"more_{number}", pa.int64())))
    found = hub.streams.schemas("orders")
    assert [version.version for version in found] == [1, 2, 3, 4, 5]
    assert sum(len(version.schema_bytes) for version in found) > LIST_BYTES_MAX


def test_the_newest_version_again_changes_nothing(hub):
    hub.streams.create("orders", schema=FIRST)
    again = hub.streams.set_schema("orders", FIRST, compatibility="none")
    assert (again.schema_version, again.compatibility) == (1, "none")


def test_an_incompatible_schema_is_refused_and_named(hub):
    hub.streams.create("orders", schema=FIRST)
    for dry_run in (True, False):
        with pytest.raises(IncompatibleSchema, match="amount"):
            hub.streams.set_schema("orders", BREAKING, dry_run=dry_run)
    assert hub.streams.get("orders").schema_version == 1
    changed = hub.streams.set_schema("orders", BREAKING, compatibility="none")
    assert (changed.schema_version, changed.compatibility) == (2, "none")


def test_a_dry_run_changes_nothing(hub):
    hub.streams.create("orders", schema=FIRST)
    told = hub.streams.set_schema("orders", SECOND, dry_run=True, compatibility="full")
    assert (told.schema_version, told.compatibility) == (1, "backward")
    assert hub.streams.get("orders") == hub.streams.get("orders")
    assert len(hub.streams.schemas("orders")) == 1


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"schema": FIRST, "key": "nobody"}, InvalidSchema, "no column 'nobody'"),
        ({"schema": SECOND, "key": "amount"}, InvalidSchema, "cannot be in the key"),
        ({"schema": FIRST, "key": ("id", "id")}, InvalidSchema, "twice"),
        ({"schema": FIRST, "index": "nobody"}, InvalidSchema, "no column 'nobody'"),
        ({"schema": FIRST, "index": ("city", "city")}, InvalidSchema, "twice"),
        ({"schema": pa.schema([("tags", pa.list_(pa.string()))]), "index": "tags"}, InvalidSchema, "be in the index"),
        ({"key": "id"}, InvalidSetting, "give a schema too"),
        ({"index": "id"}, InvalidSetting, "give a schema too"),
        ({"compatibility": "sideways"}, InvalidSetting, "'sideways' is not known"),
        ({"key": 7}, InvalidSetting, "key"),
        ({"schema": pa.schema([("x", pa.null())])}, InvalidSchema, "x"),
        ({"schema": 7}, InvalidSchema, "schema"),
    ],
)
def test_what_cannot_be_is_refused(hub, options, error, text):
    with pytest.raises(error, match=text):
        hub.streams.create("orders", **options)
    assert hub.streams.list() == []


def test_of_two_at_once_the_second_is_checked_against_the_first(hub):
    """Each alone may follow the first version, and neither may follow the other."""
    hub.streams.create("orders", schema=FIRST, compatibility="full")
    rivals = [FIRST.append(pa.field("amount", kind)) for kind in (pa.float64(), pa.string())]
    for rival in rivals:
        hub.streams.set_schema("orders", rival, dry_run=True)
    outcomes = []

    def set_schema(rival):
        try:
            outcomes.append(hub.streams.set_schema("orders", rival).schema_version)
        except IncompatibleSchema as error:
            outcomes.append(error)

    threads = [threading.Thread(target=set_schema, args=(rival,)) for rival in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(str(type(outcome).__name__) for outcome in outcomes) == ["IncompatibleSchema", "int"]
    assert hub.streams.get("orders").schema_version == 2


def test_one_that_exists_is_taken_if_it_has_what_is_said(hub):
    made = hub.streams.create("orders", shards=2, schema=FIRST, key="id", retention="1h", cleanup="compact")
    hub.streams.set_schema("orders", SECOND)
    for options in (
        {},
        {"shards": 2},
        {"schema": FIRST},
        {"schema": SECOND, "key": ["id"]},
        {"retention": "1h", "cleanup": "compact", "hash": "crc32", "compatibility": "backward", "retention_bytes": 0},
    ):
        assert hub.streams.create("orders", exist_ok=True, **options).uuid == made.uuid
    with pytest.raises(StreamExists):
        hub.streams.create("orders")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shards": 3}, "shards is 2, not 3"),
        ({"hash": "murmur2"}, "hash is crc32, not murmur2"),
        ({"retention": "2h"}, "retention is 1h, not 2h"),
        ({"retention_bytes": 5}, "retention_bytes is 0, not 5"),
        ({"cleanup": "delete"}, "cleanup is compact, not delete"),
        ({"tombstones": "2h"}, "tombstone is 1d, not 2h"),
        ({"schema": BREAKING}, "its schema is another one"),
        ({"schema": FIRST, "key": "city"}, "key is id, not city"),
        ({"schema": FIRST, "index": "city"}, "index is not set, not city"),
        ({"compatibility": "none"}, "compatibility is backward, not none"),
    ],
)
def test_one_that_exists_with_other_options_is_not_taken(hub, options, text):
    hub.streams.create("orders", shards=2, schema=FIRST, key="id", retention="1h", cleanup="compact")
    with pytest.raises(InvalidSetting, match=f"'orders' exists already, with other options: {text}"):
        hub.streams.create("orders", exist_ok=True, **options)


def test_every_mode_is_known_to_the_log():
    assert set(COMPATIBILITIES) == set(MODES)


# Where a schema is known.


def test_who_only_reads_a_folder_knows_its_schemas_and_sets_none(tmp_path):
    with mainstem.open(tmp_path) as hub, mainstem.open(tmp_path, read_only=True) as reader:
        made = hub.streams.create("orders", schema=FIRST)
        assert reader._port.schema(made.schema_id) == Schema(FIRST)
        assert reader.streams.get("orders").schema == made.schema
        hub.streams.set_schema("orders", SECOND)
        assert [version.schema for version in reader.streams.schemas("orders")] == [Schema(FIRST), Schema(SECOND)]
        with pytest.raises(ReadOnly):
            reader.streams.set_schema("orders", FIRST)
        with pytest.raises(InvalidSchema, match="no schema has id 99"):
            reader._port.schema(99)


def test_schemas_are_there_after_a_restart(tmp_path):
    with mainstem.open(tmp_path) as hub:
        made = hub.streams.create("orders", schema=FIRST, key="id")
        hub.streams.set_schema("orders", SECOND)
        hub.streams.alter("orders", shards=3)
    with mainstem.open(tmp_path) as hub:
        found = hub.streams.get("orders")
        assert (found.schema_version, found.key, found.generations) == (2, ("id",), ((3, (0,)),))
        assert hub._port.schema(made.schema_id) == Schema(FIRST)


@pytest.mark.slow("starts a server process")
def test_a_schema_that_was_seen_is_known_without_the_server(tmp_path):
    """After S3: who has what it needs goes on when those who gave it are gone."""
    with ServerProcess(tmp_path / "data") as server:
        with mainstem.connect(server.url) as maker:
            made = maker.streams.create("orders", schema=FIRST)
            older = maker.streams.create("older", schema=SECOND)
        hub = mainstem.connect(server.url)
        hub.streams.get("orders")
        hub._port.schema(older.schema_id)
        server.kill()
        assert hub._port.schema(made.schema_id) == Schema(FIRST)
        assert hub._port.schema(older.schema_id) == Schema(SECOND)
        hub.close()
