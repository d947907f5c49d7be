"""Schemas and generations of streams: the same rows on every backend."""

import pyarrow as pa
import pytest

from mainstem.core.batch import BatchHeader
from mainstem.core.errors import (
    InvalidPayload,
    InvalidRequest,
    MainstemError,
    Refused,
    StaleGeneration,
    StreamDeleted,
)
from mainstem.core.limits import BARRIERS_PER_STREAM_MAX, SCHEMA_VERSIONS_MAX, SHARDS_PER_STREAM_MAX
from mainstem.core.schema import Schema
from mainstem.log.flush import (
    AlterStream,
    Appended,
    BeginEpoch,
    Command,
    CreateStream,
    DeleteStream,
    DescribeSchema,
    Done,
    Flush,
    ForgetStream,
    OpenBlock,
    Outcome,
    Rejected,
    SetSchema,
    WrittenBatch,
)
from mainstem.log.ledger.apply import Applier
from mainstem.log.ledger.base import GenerationRow, Ledger, VersionRow
from mainstem.log.ledger.memory import MemoryLedger
from mainstem.log.ledger.rules.epochs import EPOCH_SCHEMA_BITS
from mainstem.log.ledger.sqlite import SqliteLedger
from tests.unit.log.parts import LOG_UUID, NOW_US

FIRST = Schema(pa.schema([("id", pa.int64())]))
SECOND = Schema(pa.schema([("id", pa.int64()), ("city", pa.string())]))
THIRD = Schema(pa.schema([("other", pa.bool_())]))


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request, tmp_path):
    if request.param == "memory":
        ledger: Ledger = MemoryLedger(epoch=1)
    else:
        ledger = SqliteLedger.create(tmp_path / "ledger.db", log_uuid=LOG_UUID, epoch=1)
    yield ledger
    ledger.close()


class Log:
    """Flushes of a few items each, applied to a ledger. After each the applier is made anew: memory holds no truth."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.run(OpenBlock(1, 1, NOW_US))

    def run(self, *items: Command | WrittenBatch) -> list[Outcome]:
        applier = Applier(self.ledger)
        number = applier.applied + 1
        return applier.apply(Flush(number, 1, 64 * number, NOW_US, items))[1]

    def refused(self, *items: Command | WrittenBatch) -> MainstemError:
        outcome = self.run(*items)[-1]
        assert isinstance(outcome, Rejected)
        return outcome.error

    def create(self, name: str = "orders", schema: Schema | None = None, shards: int = 1) -> int:
        given = {} if schema is None else {"schema": schema.serialized, "fingerprint": schema.fingerprint}
        number = self.ledger.stream_id_max() + 1
        (outcome,) = self.run(
            CreateStream(f"{number:032x}", name, shards, "crc32", 10**9, NOW_US, **given)  # type: ignore[arg-type]
        )
        assert isinstance(outcome, Done)
        return outcome.stream


@pytest.fixture
def log(ledger):
    return Log(ledger)


def set_schema(stream: int, schema: Schema, version: int, **other) -> SetSchema:
    return SetSchema(stream, schema.serialized, schema.fingerprint, version, NOW_US + version, **other)


def batch(stream: int, schema_id: int = 0, shard: int = 0, generation: int = 0, position: int = 64) -> WrittenBatch:
    header = BatchHeader(stream, shard, 3, 1, 0, schema_id, 9, 9, 0, 0, 0, 0, generation, NOW_US, NOW_US)
    return WrittenBatch(header, position, 200)


def test_a_stream_begins_with_version_1_of_its_schema(log):
    stream = log.create(schema=FIRST)
    row = log.ledger.load_stream(stream)
    assert (row.schema_id, row.schema_version) == (1, 1)
    assert log.ledger.load_schema(1) == FIRST
    assert list(log.ledger.load_versions(stream)) == [VersionRow(stream, 1, 1, NOW_US)]
    assert log.ledger.load_schema(2) is None


def test_names_of_columns_and_the_mode_come_back(log):
    command = CreateStream(
        "0" * 32, "orders", 1, "crc32", 10**9, NOW_US,
        schema=SECOND.serialized, fingerprint=SECOND.fingerprint, key=("id", "city"), index=("city",),
        compatibility="full",
    )  # fmt: skip
    log.run(command)
    row = log.ledger.stream_named("orders")
    assert (row.key, row.index, row.compatibility) == (("id", "city"), ("city",), "full")
    assert log.ledger.list_streams() == [row]


def test_versions_count_and_ids_are_given_once_for_a_schema(log):
    one, other = log.create("one", FIRST), log.create("other")
    log.run(set_schema(one, SECOND, 2), set_schema(other, SECOND, 1), set_schema(other, FIRST, 2))
    # Back to what it was: another version, the same schema.
    log.run(set_schema(one, FIRST, 3), set_schema(other, THIRD, 3))
    assert [version.schema_id for version in log.ledger.load_versions(one)] == [1, 2, 1]
    assert [version.schema_id for version in log.ledger.load_versions(other)] == [2, 1, 3]
    assert log.ledger.load_stream(one).schema_version == 3
    assert log.ledger.schema_id_max() == 3


def test_two_versions_in_one_flush(log):
    stream = log.create()
    assert log.run(set_schema(stream, FIRST, 1), set_schema(stream, SECOND, 2)) == [Done(stream), Done(stream)]
    assert log.ledger.load_stream(stream).schema_id == 2


@pytest.mark.parametrize("version", [0, 1, 3])
def test_only_the_next_version_is_set(log, version):
    """Whoever checked a schema against another than the newest has to look again."""
    stream = log.create(schema=FIRST)
    error = log.refused(set_schema(stream, SECOND, version))
    assert type(error) is Refused
    assert "version 1 of its schema by now" in str(error)
    assert log.ledger.load_stream(stream).schema_version == 1
    assert log.ledger.schema_id_max() == 1


def test_the_mode_changes_with_a_schema_or_alone(log):
    stream = log.create(schema=FIRST)
    log.run(set_schema(stream, SECOND, 2, compatibility="none"))
    assert log.ledger.load_stream(stream).compatibility == "none"
    log.run(set_schema(stream, FIRST, 3))
    assert log.ledger.load_stream(stream).compatibility == "none"
    log.run(AlterStream(stream, compatibility="full"))
    assert log.ledger.load_stream(stream).compatibility == "full"


def test_there_is_a_limit_of_versions(log, monkeypatch):
    monkeypatch.setattr("mainstem.log.ledger.rules.schemas.SCHEMA_VERSIONS_MAX", 2)
    stream = log.create(schema=FIRST)
    log.run(set_schema(stream, SECOND, 2))
    assert isinstance(log.refused(set_schema(stream, FIRST, 3)), InvalidRequest)
    assert SCHEMA_VERSIONS_MAX > 2


def test_a_deleted_stream_gets_no_schema(log):
    stream = log.create()
    log.run(DeleteStream(stream, NOW_US))
    assert isinstance(log.refused(set_schema(stream, FIRST, 1)), StreamDeleted)
    assert isinstance(log.refused(AlterStream(stream, shards=2)), StreamDeleted)


def test_a_batch_has_no_schema_or_one_of_its_stream(log):
    stream, other = log.create("orders", FIRST), log.create("other", THIRD)
    log.run(set_schema(stream, SECOND, 2))
    assert log.run(batch(stream, 0), batch(stream, 1), batch(stream, 3)) == [
        Appended(0),
        Appended(3),
        Appended(6),
    ]
    for foreign in (2, 4):
        error = log.refused(batch(stream, foreign))
        assert isinstance(error, InvalidPayload)
        assert f"never had schema {foreign}" in str(error)
    assert isinstance(log.refused(batch(other, 1)), InvalidPayload)
    assert log.ledger.load_shard(stream, 0).next == 9


def test_a_schema_counts_for_batches_behind_it_in_the_same_flush(log):
    stream = log.create(schema=FIRST)
    commands = [set_schema(stream, SECOND, 2), set_schema(stream, THIRD, 3)]
    assert log.run(*commands, batch(stream, 2))[-1] == Appended(0)


def test_what_describes_a_schema_changes_nothing(log):
    stream = log.create(schema=FIRST)
    before = log.ledger.list_streams()
    assert log.run(DescribeSchema(7, SECOND.serialized)) == [Done()]
    assert (log.ledger.list_streams(), log.ledger.load_schema(7)) == (before, None)
    assert log.ledger.load_stream(stream).schema_version == 1


def test_schemas_stay_when_their_stream_is_forgotten(log):
    """A reader may know one by its id, which must never be another's."""
    stream = log.create(schema=FIRST)
    log.run(AlterStream(stream, shards=2))
    log.run(DeleteStream(stream, NOW_US))
    log.run(ForgetStream(stream))
    assert list(log.ledger.load_versions(stream)) == list(log.ledger.load_generations(stream)) == []
    assert log.ledger.load_schema(1) == FIRST
    assert log.ledger.load_stream(log.create("next", SECOND)).schema_id == 2


def test_ids_of_schemas_are_those_of_their_epoch(log):
    """What was given after the backup is not given again: a client may still have it."""
    log.create(schema=FIRST)
    log.run(BeginEpoch(2, NOW_US))
    assert log.ledger.load_stream(log.create("next", SECOND)).schema_id == (2 << EPOCH_SCHEMA_BITS) + 1
    assert log.ledger.load_stream(log.create("same", FIRST)).schema_id == 1


# More shards.


def test_more_shards_begin_a_generation_with_a_barrier_for_each_that_was_there(log):
    stream = log.create(shards=2)
    log.run(batch(stream), batch(stream, shard=1), batch(stream, shard=1, position=400))
    # What stands before it in its flush counts.
    log.run(batch(stream), AlterStream(stream, shards=5, retention_us=7))
    row = log.ledger.load_stream(stream)
    assert (row.shards, row.generation, row.retention_us) == (5, 1, 7)
    assert list(log.ledger.load_generations(stream)) == [GenerationRow(stream, 1, 5, (6, 6))]
    log.run(batch(stream, shard=4, generation=1), AlterStream(stream, shards=6), AlterStream(stream, shards=7))
    assert list(log.ledger.load_generations(stream))[1:] == [
        GenerationRow(stream, 2, 6, (6, 6, 0, 0, 3)),
        GenerationRow(stream, 3, 7, (6, 6, 0, 0, 3, 0)),
    ]


def test_batches_of_another_generation_are_refused_and_told_what_is_right(log):
    stream = log.create()
    log.run(AlterStream(stream, shards=3))
    for generation in (0, 2):
        error = log.refused(batch(stream, generation=generation))
        assert isinstance(error, StaleGeneration)
        assert (error.generation, error.shards) == (1, 3)
    assert log.run(batch(stream, shard=2, generation=1)) == [Appended(0)]


def test_as_many_shards_as_there_are_is_no_change(log):
    stream = log.create(shards=2)
    assert log.run(AlterStream(stream, shards=2)) == [Done(stream)]
    assert log.ledger.load_stream(stream).generation == 0


@pytest.mark.parametrize("shards", [1, 0, -3, SHARDS_PER_STREAM_MAX + 1])
def test_shards_only_become_more_up_to_the_limit(log, shards):
    stream = log.create(shards=2)
    assert isinstance(log.refused(AlterStream(stream, shards=shards)), InvalidRequest)
    assert list(log.ledger.load_generations(stream)) == []


def test_a_compacted_stream_keeps_its_shards(log):
    """Its shards are compacted one by one: a tombstone that goes must not leave an older record in another one."""
    stream = log.create()
    log.run(AlterStream(stream, cleanup="compact"))
    assert isinstance(log.refused(AlterStream(stream, shards=2)), InvalidRequest)
    assert log.run(AlterStream(stream, cleanup="delete", shards=2)) == [Done(stream)]
    assert "keeps the number of shards" in str(log.refused(AlterStream(stream, cleanup="compact,delete")))
    assert log.ledger.load_stream(stream).cleanup == "delete"


def test_a_stream_has_a_limit_of_barriers(log):
    stream = log.create(shards=SHARDS_PER_STREAM_MAX - 3)
    log.run(AlterStream(stream, shards=SHARDS_PER_STREAM_MAX - 2))
    log.run(AlterStream(stream, shards=SHARDS_PER_STREAM_MAX - 1))
    error = log.refused(AlterStream(stream, shards=SHARDS_PER_STREAM_MAX))
    assert isinstance(error, InvalidRequest)
    assert f"{BARRIERS_PER_STREAM_MAX} is the limit" in str(error)
