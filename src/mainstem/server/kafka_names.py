"""What groups and streams come to under the names that dashboards of lag in Kafka ask for.

The names and labels are those of the exporter that most of these dashboards are made for: a topic is a stream, a
partition a shard, a consumer group a group of readers. Sums are there for every group that is named; single shards up
to a limit, so that the number of series is bounded.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mainstem.core.errors import UnknownGroup
from mainstem.log.ledger.base import StreamRow
from mainstem.log.log import Log
from mainstem.transport.sharing import GroupInfo

NAMES: Final[Mapping[str, str]] = {
    "kafka_consumergroup_members": "Members of the group.",
    "kafka_consumergroup_current_offset": "The offset that the group reads next in a shard.",
    "kafka_consumergroup_lag": "Offsets between where the group stands in a shard and the end of it.",
    "kafka_consumergroup_current_offset_sum": "The sum over the shards of a stream.",
    "kafka_consumergroup_lag_sum": "The sum over the shards of a stream.",
    "kafka_topic_partitions": "Shards of the stream.",
    "kafka_topic_partition_current_offset": "The offset that the next record of a shard will have.",
    "kafka_topic_partition_oldest_offset": "The first offset of a shard that can be read.",
}
# Single shards that are told of, of groups and of streams.
_SHARDS_MAX: Final = 5_000


class Sample(NamedTuple):
    """One line of the page."""

    name: str
    value: int
    labels: Mapping[str, str]


def samples(log: Log, streams: Sequence[StreamRow], groups: Sequence[GroupInfo]) -> Iterator[Sample]:
    """Of these streams and groups. Any thread but the loop's: it asks the disk."""
    ends = {key: (row.start, row.stable) for key, row in log.written_shards().items()}
    yield from _of_streams(streams, ends)
    names = {row.id: row.name for row in log.ledger.list_streams() if not row.deleted_us}
    left = _SHARDS_MAX
    for group in groups:
        yield Sample("kafka_consumergroup_members", group.member_count, {"consumergroup": group.name})
        sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        for (stream, shard), offset in _offsets(log, group.name):
            if stream not in names:
                continue
            labels = {"consumergroup": group.name, "topic": names[stream]}
            lag = max(0, ends.get((stream, shard), (0, 0))[1] - offset)
            sums[names[stream]][0] += offset
            sums[names[stream]][1] += lag
            if left > 0:
                left -= 1
                labels = {**labels, "partition": str(shard)}
                yield Sample("kafka_consumergroup_current_offset", offset, labels)
                yield Sample("kafka_consumergroup_lag", lag, labels)
        for name, (offset, lag) in sums.items():
            labels = {"consumergroup": group.name, "topic": name}
            yield Sample("kafka_consumergroup_current_offset_sum", offset, labels)
            yield Sample("kafka_consumergroup_lag_sum", lag, labels)


def _of_streams(streams: Sequence[StreamRow], ends: Mapping[tuple[int, int], tuple[int, int]]) -> Iterator[Sample]:
    left = _SHARDS_MAX
    for row in streams:
        yield Sample("kafka_topic_partitions", row.shards, {"topic": row.name})
        for shard in range(min(row.shards, left)):
            start, end = ends.get((row.id, shard), (0, 0))
            labels = {"topic": row.name, "partition": str(shard)}
            yield Sample("kafka_topic_partition_current_offset", end, labels)
            yield Sample("kafka_topic_partition_oldest_offset", start, labels)
        left = max(0, left - row.shards)


def _offsets(log: Log, group: str) -> list[tuple[tuple[int, int], int]]:
    try:
        return sorted((key, row.offset) for key, row in log.groups.get(group).shards.items())
    except UnknownGroup:
        return []  # it was deleted a moment ago
