"""What it costs to be guarded: one producer of messages of 100 bytes, against the same without TLS, tokens and rules.

Each run is two, one after the other, on servers of their own: an open one, and one that asks who writes, looks at a
hundred rules, counts against a quota, and speaks TLS if the case says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import Stopwatch, run_child, scratch
from benchmarks.payload import messages
from benchmarks.scenarios.base import Case, Metrics, Scenario, Settings, Target, ours
from benchmarks.scenarios.produce import SIZE, WARM_UP_COUNT

COUNT = 2_000_000
RULES = 100
# Far above what anybody writes: what is measured is the counting.
QUOTA = 1 << 40
TARGET_PERCENT = 20.0


def run(settings: Settings, *, tls: bool) -> Metrics:
    count = settings.count(COUNT)
    open_, guarded = (_produce(settings, count, is_guarded=it, tls=it and tls) for it in (False, True))
    rates = [count / took["wall_s"] for took in (open_, guarded)]
    return {
        "msg_per_s": rates[1],
        "open_msg_per_s": rates[0],
        "cost_percent": 100 * (1 - rates[1] / rates[0]),
        "cpu_cost_percent": 100 * (guarded["cpu_s"] / open_["cpu_s"] - 1),
    }


def _produce(settings: Settings, count: int, *, is_guarded: bool, tls: bool) -> dict[str, float]:
    with scratch(settings.data, "guarded") as folder:
        run_child("benchmarks.scenarios.guarded:prepare", folder=str(folder), is_guarded=is_guarded, tls=tls)
        more = ["--tls-cert", str(folder / "server.crt"), "--tls-key", str(folder / "server.key")] if tls else []
        with product.Server(folder, more=more) as server:
            who: dict[str, Any] = {"token_file": str(folder / "token")} if is_guarded else {}
            if tls:
                who["ca"] = str(folder / "ca" / "ca.crt")
            function = "benchmarks.scenarios.guarded:produce"
            return dict(run_child(function, url=server.url, who=who, count=count, watch=[server.pid]))


def prepare(talk: Talk, folder: str, is_guarded: bool, tls: bool) -> None:
    """A log, and who may do what with it."""
    import mainstem
    from mainstem.testing.certificates import Authority

    place = Path(folder)
    with mainstem.open(place / "data") as hub:
        hub.streams.create(product.STREAM)
        if is_guarded:
            hub.access.create_token("root", admin=True)
            writer = hub.access.create_token("writer", allow=[f"write:{product.STREAM}"])
            for number in range(RULES):
                hub.access.allow("writer", "read", f"other-{number}.*")
            hub.access.set_quota("*", "write_bytes", QUOTA)
            (place / "token").write_text(writer.secret)
    if tls:
        issued = Authority(place / "ca").issue("localhost", addresses=["127.0.0.1"])
        issued.certificate.rename(place / "server.crt")
        issued.key.rename(place / "server.key")


def produce(talk: Talk, url: str, who: dict[str, Any], count: int, watch: list[int]) -> dict[str, float]:
    import mainstem

    with mainstem.connect(url, **who) as hub, hub.producer() as producer:
        producer.send_many(product.STREAM, list(messages(WARM_UP_COUNT, SIZE))).result()
        values = list(messages(count, SIZE))
        settle()
        watch_ = Stopwatch(watch)
        send = producer.send
        for value in values:
            send(product.STREAM, value)
        producer.flush()
        return watch_.stop()


def _case(name: str, note: str, *, tls: bool) -> Case:
    return ours(name, lambda settings: run(settings, tls=tls), note)


SCENARIO = Scenario(
    name="guarded",
    title="What TLS, tokens, rules and quotas cost one producer",
    cases=(
        _case("token", f"a token, {RULES} rules, a quota", tls=False),
        _case("TLS and token", "the same over TLS 1.3", tls=True),
    ),
    shown=("msg_per_s", "open_msg_per_s", "cost_percent", "cpu_cost_percent"),
    targets=(
        Target("token", "cost_percent", TARGET_PERCENT, at_most=True),
        Target("TLS and token", "cost_percent", TARGET_PERCENT, at_most=True),
    ),
)
