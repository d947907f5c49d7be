"""Groups that hold retention, through both hubs and over the life of a server."""

import time
from datetime import UTC, datetime, timedelta

import pytest

import mainstem
from mainstem.core.errors import InvalidRequest, InvalidSetting, UnknownGroup
from mainstem.testing.server import ServerProcess

OLD = datetime.now(UTC) - timedelta(days=2)


def fill(hub, stream: str, count: int = 10, **options) -> None:
    """Records of the day before yesterday."""
    hub.streams.create(stream, exist_ok=True, **options)
    with hub.producer() as producer:
        for number in range(count):
            producer.send(stream, b"%d" % number, timestamp=OLD)


def read(hub, stream: str, count: int, group: str = "lake") -> None:
    with hub.consumer(stream, group=group, start="earliest", commit="manual") as consumer:
        for _ in range(count):
            assert consumer.poll(20) is not None
        consumer.commit()


def test_a_hold_is_seen_changed_and_ended(hub):
    fill(hub, "orders", retention="30d")
    with pytest.raises(UnknownGroup):
        hub.groups.hold("lake", "1d")
    read(hub, "orders", 4)
    assert hub.groups.get("lake").hold_seconds == 0
    assert hub.groups.hold("lake", timedelta(hours=1)).hold_seconds == 3_600
    assert hub.groups.hold("lake", "2d").hold_seconds == 2 * 86_400
    (listed,) = hub.groups.list()
    assert (listed.hold_seconds, listed.held_records) == (2 * 86_400, 0)
    with pytest.raises(InvalidRequest, match="up to 30 days"):
        hub.groups.hold("lake", "31d")
    for wrong in ("", "0s", "soon", timedelta(0), timedelta(days=-1), 5):
        with pytest.raises(InvalidSetting):
            hub.groups.hold("lake", wrong)
    assert hub.groups.hold("lake", None).hold_seconds == 0


@pytest.mark.slow("waits for retention, before and after a server is killed")
def test_trimmed_without_and_held_with_one(tmp_path):
    """Two streams whose records are too old, each half read; only one of the groups holds."""
    with ServerProcess(tmp_path / "data", "--upkeep-interval", "100ms") as server:
        with mainstem.connect(server.url) as hub:
            for stream, group in (("held", "lake"), ("not", "pond")):
                fill(hub, stream, retention="30d")
                read(hub, stream, 4, group)
            hub.groups.hold("lake", "3d")
        server.kill()
        server.start()
        with mainstem.connect(server.url) as hub:
            for stream in ("held", "not"):
                hub.streams.alter(stream, retention="1d")
            come_to(lambda: hub.streams.get("not").starts == (10,))
            assert hub.streams.get("held").starts[0] <= 4
            assert hub.groups.get("lake").held_records == 6
            with hub.consumer("held", group="lake", start="earliest", follow=False) as consumer:
                assert [int(record.value) for record in consumer] == [4, 5, 6, 7, 8, 9]
            # What was read is kept for nobody.
            come_to(lambda: hub.streams.get("held").starts == (10,))
            # Who does not want to wait for it ends it.
            hub.groups.reset("lake", "earliest", dry_run=False)
            fill(hub, "held")
            time.sleep(0.5)
            assert hub.groups.get("lake").held_records == 10
            hub.groups.delete("lake")
            come_to(lambda: hub.streams.get("held").starts == (20,))


def come_to(is_so, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
