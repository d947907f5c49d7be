"""One producer calls ``send`` for every message of 100 bytes; time from the first send until ``flush`` returns."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import Stopwatch, rss_peak_bytes, run_child, scratch
from benchmarks.payload import messages
from benchmarks.peers import PEERS, Durability
from benchmarks.scenarios.base import Case, Metrics, Ratio, Scenario, Settings, Target, ours

SIZE = 100
COUNT = 2_000_000
KEY_COUNT = 1_009
WARM_UP_COUNT = 10_000
WARM_UP_STREAM = "warm"
DURABILITIES: tuple[Durability, ...] = ("safe", "shipped")


def run_ours(settings: Settings, *, shards: int, keyed: bool) -> Metrics:
    count = settings.count(COUNT)
    with scratch(settings.data, "produce") as folder, product.Server(folder) as server:
        product.create_stream(server.url, shards=shards)
        product.create_stream(server.url, name=WARM_UP_STREAM, shards=shards)
        function = "benchmarks.scenarios.produce:produce"
        took = run_child(function, url=server.url, count=count, keyed=keyed, watch=[server.pid])
        memory = rss_peak_bytes(server.pid) / 1e6
        product.verify_stream(server.url, count, SIZE)
    return {
        "msg_per_s": count / took["wall_s"],
        "msg_per_cpu_s": count / took["cpu_s"],
        "client_cores": took["client_cpu_s"] / took["wall_s"],
        "server_cores": took["server_cpu_s"] / took["wall_s"],
        "server_rss_mb": memory,
    }


def produce(talk: Talk, url: str, count: int, keyed: bool, watch: list[int]) -> dict[str, float]:
    import mainstem

    with mainstem.connect(url) as hub, hub.producer() as producer:
        _send(producer, WARM_UP_STREAM, messages(WARM_UP_COUNT, SIZE), keyed)
        values = messages(count, SIZE)
        settle()
        watch_ = Stopwatch(watch)
        _send(producer, product.STREAM, values, keyed)
        return watch_.stop()


def _send(producer: Any, stream: str, values: Any, keyed: bool) -> None:
    send = producer.send
    if keyed:
        for value, key in zip(values, cycle(_keys()), strict=False):
            send(stream, value, key=key)
    else:
        for value in values:
            send(stream, value)
    producer.flush()


def _keys() -> list[bytes]:
    return [b"customer-%d" % number for number in range(KEY_COUNT)]


def run_peer(settings: Settings, *, name: str, durability: Durability) -> Metrics:
    peer = PEERS[name]()
    with scratch(settings.data, name) as folder:
        try:
            peer.start(folder, durability)
            return peer.run_producer(settings.count(peer.count[durability]), SIZE)
        finally:
            peer.stop()


def _peer_case(name: str, durability: Durability) -> Case:
    peer = PEERS[name]
    return Case(
        f"{name}, {durability}",
        lambda settings: run_peer(settings, name=name, durability=durability),
        peer.available(),
        f"{peer.how[durability]}; acknowledged means: {peer.promise[durability]}",
        is_peer=True,
    )


PROMISE = "acknowledged means: synced to disk"
PEER_CASES = tuple(_peer_case(name, durability) for durability in DURABILITIES for name in PEERS)

# How many times as fast we have to be as a peer that promises the same. Redis by script, where one command adds many
# records, is no pipeline of commands; its ratio is shown.
BOUNDS = {"nats, safe": 10.0, "redis, safe": 5.0}

SCENARIO = Scenario(
    name="produce",
    title="One producer, one send per message of 100 bytes, acknowledged",
    cases=(
        ours("keyless", lambda settings: run_ours(settings, shards=1, keyed=False), f"1 shard; {PROMISE}"),
        ours("keyed", lambda settings: run_ours(settings, shards=4, keyed=True), f"4 shards; {PROMISE}"),
        *PEER_CASES,
    ),
    shown=("msg_per_s", "msg_per_cpu_s", "server_cores", "server_rss_mb"),
    targets=(Target("keyless", "msg_per_s", 1.5e6), Target("keyed", "msg_per_s", 1.0e6)),
    ratios=tuple(
        Ratio("keyless", case.name, metric, BOUNDS.get(case.name) if metric == "msg_per_s" else None)
        for case in PEER_CASES
        for metric in ("msg_per_s", "msg_per_cpu_s")
    ),
)
