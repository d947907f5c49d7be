"""The public face: what users write in their programs. A name that appears or goes away is a decision, made here."""

import inspect
import subprocess
import sys

import pyarrow as pa
import pytest

import mainstem
import mainstem.aio
from mainstem.consume.consumer import Consumer
from mainstem.consume.found import Found
from mainstem.consume.group_consumer import GroupConsumer
from mainstem.consume.record import Record, RecordBatch
from mainstem.consume.sequence import OrderedBatch, OrderedBatches
from mainstem.consume.several import SeveralConsumer
from mainstem.consume.spread_consumer import SpreadConsumer
from mainstem.core.errors import BY_CODE
from mainstem.hub.access import Access
from mainstem.hub.groups import Groups
from mainstem.hub.hub import Hub, Streams
from mainstem.produce.chunk import Ack, BatchAck
from mainstem.produce.options import ProducerOptions
from mainstem.produce.producer import Producer
from mainstem.produce.transaction import Transaction
from mainstem.transport.port import Erasure, SchemaInfo, StreamInfo
from mainstem.transport.sharing import GroupInfo

# Beside these, the package shows its errors.
PACKAGE = {"Cursor", "Cursors", "connect", "open"}
# To annotate with; loaded when asked for.
CLASSES = {
    "Ack",
    "BatchAck",
    "Consumer",
    "Erasure",
    "Found",
    "GroupConsumer",
    "GroupInfo",
    "Hub",
    "OrderedBatch",
    "OrderedBatches",
    "Producer",
    "Record",
    "RecordBatch",
    "Schema",
    "SchemaInfo",
    "SeveralConsumer",
    "SpreadConsumer",
    "StreamInfo",
    "Transaction",
}

NAMES = {
    Hub: "access close consumer find groups overview producer redrive sequence statistics streams transaction",
    Access: "allow create_token delete_quota delete_rule deny explain quotas revoke_token rules set_quota tokens",
    Groups: "delete get hold list reset",
    Streams: "alter create delete erase get list schemas set_schema trim",
    Producer: "close dropped flush left_out prepare send send_batch send_many",
    Ack: "add_done_callback chunk done exception index result stream",
    BatchAck: "chunks dead done exception result",
    Consumer: "batches close columns cursor left_out opened poll poll_batch seek seek_shard skipped stream undecoded "
    "watermark why_undecoded",
    SeveralConsumer: "batches close cursor poll poll_batch",
    GroupConsumer: "batches close commit group poll poll_batch positions rewind",
    SpreadConsumer: "batches close commit group poll poll_batch positions rewind",
    OrderedBatches: "close cursor poll",
    Transaction: "abort advance commit id offsets send send_batch send_many",
    OrderedBatch: (
        "cursor end first parts records to_arrow to_avro to_csv to_dicts to_ndjson to_pandas to_parquet to_polars"
    ),
    Record: "headers key offset shard stream timestamp timestamp_us undecoded value",
    RecordBatch: (
        "count end first last offset offsets records select shard slice stream to_arrow to_avro to_csv to_dicts "
        "to_ndjson to_pandas to_parquet to_polars tombstones undecoded values"
    ),
    Found: (
        "count index opened seconds skipped to_arrow to_avro to_csv to_dicts to_ndjson to_pandas to_parquet to_polars "
        "undecoded why_undecoded"
    ),
    mainstem.Schema: "arrow field fingerprint names parse serialized",
    mainstem.Cursor: "epoch offsets parse stream",
    StreamInfo: (
        "bytes cleanup compatibility created_us ends epoch generation generations gone_by_us hash id index key missing "
        "name oldest_us records restored retention_bytes retention_us schema schema_bytes schema_id schema_version "
        "shard_records shards starts statistics_bytes tombstone_us uuid verified_through_us waiting_bytes "
        "windows_differing"
    ),
    GroupInfo: (
        "advice catch_up_seconds changed_us created_us generation held_records hold_seconds member_count members name "
        "records seconds shards spread streams trend"
    ),
    SchemaInfo: "created_us id schema schema_bytes version",
    Erasure: "gone_by_us records",
    ProducerOptions: (
        "acks batch_bytes buffer_bytes check compression counts delivery_timeout linger on_bad on_full window_us"
    ),
}

CALLS = {
    "open": "(path, *, read_only=None, auto_create=False)",
    "connect": (
        "(url='mainstem://127.0.0.1:7070', *, timeout=10.0, token=None, token_file=None, ca=None, certificate=None, "
        "key=None)"
    ),
    "Hub.consumer": (
        "(stream=None, *, start='latest', follow=True, prefetch_bytes=8388608, where=None, columns=None, "
        "on_bad='raise', ordering_window=None, group=None, pattern=None, commit='auto', spread=False)"
    ),
    "Hub.sequence": "(stream, *, batch=10000, start='earliest', follow=True)",
    "Hub.transaction": "(*, timeout='60s', writer=None)",
    "Groups.list": "()",
    "Groups.get": "(name)",
    "Groups.reset": "(name, to, *, streams=None, dry_run=True)",
    "Groups.delete": "(name)",
    "Groups.hold": "(name, longer)",
    "GroupConsumer.commit": "(positions=None)",
    "Transaction.send_many": "(stream, values, keys=None, shard=None)",
    "Transaction.send_batch": "(stream, data, *, shard=None)",
    "Transaction.advance": "(*consumers)",
    "OrderedBatches.poll": "(timeout=0.0)",
    "Hub.find": "(stream, where, *, limit=None, columns=None)",
    "Hub.producer": (
        "(*, acks='durable', batch_bytes=1048576, buffer_bytes=33554432, linger=0.0, delivery_timeout=120.0, "
        "compression='lz4', on_full='block', on_bad='raise', counts=None)"
    ),
    "Streams.create": (
        "(name, *, shards=None, schema=None, key=None, index=None, compatibility=None, retention=None, "
        "retention_bytes=None, cleanup=None, tombstones=None, hash=None, exist_ok=False)"
    ),
    "Streams.alter": "(name, *, retention=None, retention_bytes=None, cleanup=None, tombstones=None, shards=None)",
    "Streams.set_schema": "(name, schema, *, compatibility=None, dry_run=False)",
    "Streams.schemas": "(name)",
    "Streams.trim": "(name, *, before=None, offset=None, shard=None)",
    "Streams.erase": "(name, key)",
    "Producer.send_many": "(stream, values, keys=None, shard=None)",
    "Producer.send_batch": "(stream, data, *, shard=None, atomic=False, infer=False)",
    "Producer.flush": "(timeout=None)",
    "Consumer.poll": "(timeout=0.0)",
    "Consumer.poll_batch": "(timeout=0.0)",
    "RecordBatch.to_arrow": "(*, metadata=False)",
    "Ack.result": "(timeout=None)",
    "BatchAck.result": "(timeout=None)",
}


# What parts of the library ask of each other: not for users.
INSIDE = {
    *("abandon", "begin_advance", "call_when_ready", "call_when_woken", "doubt", "end_advance", "is_at_end", "on_news"),
    *("read_bytes", "stream_name", "take_nowait", "wake"),
}


def public(names):
    return {name for name in names if not name.startswith("_")} - INSIDE


def test_the_package():
    errors = {kind.__name__ for kind in BY_CODE.values()}
    shown = {
        name
        for name, value in vars(mainstem).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name not in ("TYPE_CHECKING", "Path", "Any")
    }
    assert shown == PACKAGE | errors
    assert set(mainstem.__all__) == set(dir(mainstem)) == PACKAGE | CLASSES | errors


def test_the_classes_to_annotate_with():
    found = {name: getattr(mainstem, name) for name in CLASSES}
    assert found == {kind.__name__: kind for kind in NAMES if kind.__name__ in CLASSES}
    assert len(found) == len(CLASSES)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        mainstem.Nothing  # noqa: B018


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, mainstem; sys.exit(bool({'pyarrow', 'numpy', 'apsw', 'uvloop'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_the_objects(tmp_path):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("s")
        with hub.producer() as producer, hub.consumer("s", start="earliest") as consumer:
            ack, acks = producer.send("s", b"v"), producer.send_many("s", [b"v"])
            acks.result(10)
            batch = consumer.poll_batch(10)
            assert batch is not None
            record = next(batch.records())
            objects = [
                hub,
                hub.access,
                hub.streams,
                producer,
                ack,
                acks,
                consumer,
                record,
                batch,
                consumer.cursor,
                consumer.stream,
            ]
            found_records = hub.find("s", "_offset = 0")
            schema = mainstem.Schema(pa.schema([("id", pa.int64())]))
            objects += [hub.streams.erase("s", b"k"), found_records, schema, SchemaInfo(1, schema.serialized)]
            with hub.sequence("s", follow=False) as ordered:
                objects += [ordered, next(iter(ordered))]
            with hub.consumer(["s"], follow=False) as several, hub.consumer("s", group="g", follow=False) as member:
                objects += [several, member, hub.transaction()]
                assert list(member) == []
            with hub.consumer("s", group="h", spread=True) as spread:
                objects.append(spread)
            objects += [hub.groups, hub.groups.get("g")]
            found = {type(thing): public(dir(thing)) for thing in objects}
    found[ProducerOptions] = public(dir(ProducerOptions()))
    expected = {kind: set(names.split()) for kind, names in NAMES.items()}
    assert found == expected


@pytest.mark.parametrize("name", CALLS)
def test_the_calls(name):
    owner, _, method = name.rpartition(".")
    if owner:
        kind = next(kind for kind in NAMES if kind.__name__ == owner)
        signature = inspect.signature(getattr(kind, method))
        parameters = list(signature.parameters.values())[1:]
    else:
        parameters = list(inspect.signature(getattr(mainstem, method)).parameters.values())
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    assert str(inspect.Signature(bare)) == CALLS[name]


def test_send_keeps_its_shape(tmp_path):
    with mainstem.open(tmp_path) as hub, hub.producer() as producer:
        names = list(inspect.signature(producer.send).parameters)
        assert names == ["stream", "value", "key", "headers", "timestamp", "shard"]


# For asyncio: the same names, and with them the same arguments.

AWAITED = (
    *("Hub", "Producer", "Consumer", "SeveralConsumer", "GroupConsumer", "OrderedBatches", "Transaction"),
    *("Ack", "BatchAck"),
)
# What an ack is made of is not for users.
OF_ACKS = {"ack", "chunk", "chunks", "index", "producer"}


def _blocking_and_awaited():
    pairs = {name: (getattr(mainstem, name), getattr(mainstem.aio, name)) for name in AWAITED}
    parts = {kind.__name__: (kind, getattr(mainstem.aio, kind.__name__)) for kind in (Access, Groups, Streams)}
    return {**pairs, **parts}


def test_what_is_awaited_has_the_same_names():
    assert (
        set(mainstem.aio.__all__)
        == set(dir(mainstem.aio))
        == {
            *AWAITED,
            *("Access", "Groups", "Streams", "connect", "open"),
        }
    )
    for blocking, awaited in _blocking_and_awaited().values():
        # Those that objects have of their own: a hub its streams, a producer its send.
        own = {
            Hub: {"access", "streams", "groups"},
            Producer: {"send"},
            GroupConsumer: {"group"},
            Transaction: {"id"},
        }.get(blocking, set())
        assert public(dir(awaited)) - OF_ACKS | own == public(dir(blocking)) - OF_ACKS | own


@pytest.mark.parametrize("name", CALLS)
def test_what_is_awaited_has_the_same_arguments(name):
    owner, _, method = name.rpartition(".")
    if owner and owner not in _blocking_and_awaited():
        return
    blocking, awaited = _blocking_and_awaited()[owner] if owner else (mainstem, mainstem.aio)
    assert _shape(getattr(blocking, method)) == _shape(getattr(awaited, method))


def _shape(call):
    return [(one.name, one.kind, one.default) for one in inspect.signature(call).parameters.values()]


def test_importing_the_package_for_asyncio_loads_nothing_heavy():
    code = "import sys, mainstem.aio; sys.exit(bool({'pyarrow', 'numpy', 'apsw', 'uvloop'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
