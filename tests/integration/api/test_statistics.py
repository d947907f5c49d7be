"""What is known of batches without reading them, over both hubs: it is there, and it is little."""

import pyarrow as pa


def write(hub, stream: str, count: int) -> None:
    with hub.producer() as producer:
        producer.send_many(stream, [b"v" * 50] * count, [b"key %d" % number for number in range(count)]).result(10)


def test_large_batches_have_statistics_and_small_ones_have_none(hub):
    hub.streams.create("clicks")
    assert hub.streams.get("clicks").statistics_bytes == 0
    write(hub, "clicks", 100)
    assert hub.streams.get("clicks").statistics_bytes == 0
    write(hub, "clicks", 5_000)
    found = hub.streams.get("clicks")
    # About two bytes for each key.
    assert 9_000 < found.statistics_bytes < 11_000 < found.bytes
    assert hub.streams.list()[0].statistics_bytes == 0


def test_rows_have_statistics_of_their_columns(hub):
    schema = pa.schema([("id", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    hub.streams.create("orders", schema=schema, key=("id",), index=("n",))
    count = 5_000
    table = pa.table(
        {"id": [f"order {n}" for n in range(count)], "n": range(count), "at": range(count)},
        schema=schema,
    )
    with hub.producer() as producer:
        producer.send_batch("orders", table).result(10)
    # A filter for the key, and one for the index.
    assert 18_000 < hub.streams.get("orders").statistics_bytes < 21_000
