"""What comes back because the shards of a stream have changed: sent again in its order, or told if that was not why."""

from types import SimpleNamespace

from mainstem.core.errors import (
    InternalError,
    InvalidPayload,
    MainstemError,
    OutOfSequence,
    Refused,
    StaleGeneration,
    UnknownProducer,
)
from mainstem.produce.chunk import Chunk, Parcel
from mainstem.produce.returns import Returns, changed
from mainstem.produce.shipping import _Answers, _requests
from mainstem.transport.port import StreamInfo

CHANGED = StaleGeneration("changed", generation=1, shards=4)


def stream(number: int = 1) -> StreamInfo:
    return StreamInfo(number, f"{number:032x}", f"s{number}", 2, "crc32", 0, 1, 1, (0, 0), (0, 0), 0, 1)


def parcel(number: int, *errors: MainstemError | None, streams: tuple[int, ...] = (1, 2, 3)) -> Parcel:
    made = Parcel(lambda parcel, timeout: True, 0.0)
    made.number = number
    for of, error in zip(streams, errors, strict=False):
        chunk = Chunk(stream(of), 0, made, 0)
        chunk.error = error
        made.chunks.append(chunk)
    return made


def test_what_was_written_or_has_failed_does_not_wait():
    returns = Returns()
    assert not returns.take(parcel(1, None, None))
    assert not returns.take(parcel(2, InvalidPayload("no")))
    assert returns.sort_out() == ([], [])


def test_what_came_back_goes_again_in_the_order_in_which_it_was_sent():
    """Answers may overtake each other: what was refused only because of another may be told first."""
    returns = Returns()
    later, first, last = parcel(7, OutOfSequence("7")), parcel(6, CHANGED), parcel(8, UnknownProducer("8"))
    for returned in (later, first, last):
        assert returns.take(returned)
    again, final = returns.sort_out()
    assert (again, final) == ([first, later, last], [])
    for returned in again:
        (chunk,) = returned.chunks
        assert chunk.error is None
        assert (chunk.stream.shards, chunk.stream.generation) == (4, 1)
    assert returns.sort_out() == ([], [])


def test_a_gap_that_no_change_explains_is_final():
    returns = Returns()
    gap, other = parcel(1, OutOfSequence("gap")), parcel(2, None, CHANGED)
    assert returns.take(gap)
    assert returns.take(other)
    assert returns.sort_out() == ([other], [gap])
    assert isinstance(gap.chunks[0].error, OutOfSequence)
    assert [chunk.stream.shards for chunk in other.chunks] == [2, 4]


def test_other_errors_of_a_parcel_that_goes_again_stay():
    returns = Returns()
    mixed = parcel(1, CHANGED, InvalidPayload("no"), None)
    assert returns.take(mixed)
    assert returns.sort_out() == ([mixed], [])
    assert [type(chunk.error) for chunk in mixed.chunks] == [type(None), InvalidPayload, type(None)]


def test_a_server_that_does_not_say_how_many_shards_there_are_is_not_asked_again():
    returns = Returns()
    refused = parcel(1, StaleGeneration("changed"))
    assert returns.take(refused)
    assert returns.sort_out() == ([], [refused])


def test_only_a_later_generation_changes_what_is_known():
    assert changed(stream(), CHANGED).shards == 4
    later = changed(stream(), StaleGeneration("", generation=2, shards=8))
    assert changed(later, CHANGED) == later
    assert changed(stream(), None) == changed(stream(), InvalidPayload("")) == stream()


def test_a_chunk_travels_in_one_request(monkeypatch):
    """So that it is written or refused as a whole."""
    monkeypatch.setattr("mainstem.produce.shipping.APPEND_BATCHES_MAX", 4)
    first, second, third = (parcel(0, None).chunks[0] for _ in range(3))
    monkeypatch.setattr("mainstem.produce.shipping.APPEND_RAW_BYTES_MAX", 10)

    def requests(*owners: Chunk, size: int = 1) -> list[tuple[int, int]]:
        return list(_requests(owners, [size] * len(owners)))

    assert requests() == []
    assert requests(*[first] * 4) == [(0, 4)]
    assert requests(*[first] * 3, *[second] * 3, third) == [(0, 3), (3, 7)]
    assert requests(first, *[second] * 4, *[third] * 4) == [(0, 1), (1, 5), (5, 9)]
    assert requests(first, second, third, size=5) == [(0, 2), (2, 3)]
    assert requests(first, *[second] * 3, third, size=5) == [(0, 1), (1, 4), (4, 5)], "a chunk is never split"


def test_a_chunk_of_which_a_part_was_written_is_not_sent_again():
    """Nor is it acknowledged; what else is in its parcel goes again."""
    returns = Returns()
    torn, mixed = parcel(1, CHANGED), parcel(2, OutOfSequence("gap"), CHANGED)
    for returned in (torn, mixed):
        returned.chunks[0].bases[1] = 7
        assert returns.take(returned)
    assert returns.sort_out() == ([mixed], [torn])
    assert [type(chunk.error) for chunk in (*torn.chunks, *mixed.chunks)] == [Refused, Refused, type(None)]
    assert not returns.take(torn)


def test_an_answer_that_leaves_a_batch_without_a_place_is_no_success():
    made = parcel(1, None)
    (chunk,) = made.chunks
    chunk.parts = 2
    ended: list[Parcel] = []
    shipping = SimpleNamespace(_on_answered=ended.append)
    batches = [SimpleNamespace(header=SimpleNamespace(shard=1))] * 2
    _Answers(shipping, made, [chunk] * 2, batches).part(0)([7, 7])  # type: ignore[arg-type]
    assert isinstance(chunk.error, InternalError)
    assert ended == [made]
