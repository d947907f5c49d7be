"""What is kept has a limit in bytes, whatever it is made of."""

import pyarrow as pa
import pytest

from mainstem.core.kept import Kept, kept
from mainstem.core.known_schemas import KnownSchemas
from mainstem.core.layouts import _row_shape
from mainstem.core.limits import KEPT_BYTES_MAX
from mainstem.core.payload import row_template
from mainstem.core.schema import Schema, _parse, size_of
from mainstem.registry.json_rows import _plan_of
from mainstem.registry.promotion import promotion
from mainstem.registry.rows import converter_of

MIB = 1 << 20


def test_what_was_not_asked_for_the_longest_goes():
    cache: Kept[int, str] = Kept(10_000)
    for number in range(4):
        cache.add(number, f"value {number}", 2_000)
    assert [cache.get(number, "") for number in range(4)] == ["", "value 1", "value 2", "value 3"]
    cache.get(1, "")
    cache.add(4, "value 4", 2_000)
    assert [cache.get(number, "") for number in (1, 2, 3, 4)] == ["value 1", "", "value 3", "value 4"]


def test_a_key_that_is_added_again_counts_once():
    cache: Kept[int, str] = Kept(10_000)
    for number in range(100):
        cache.add(1, f"value {number}", 2_000)
    assert cache.get(1, "") == "value 99"
    assert 2_000 < cache.bytes < 4_000
    cache.clear()
    assert cache.bytes == 0
    assert cache.get(1, "nothing") == "nothing"


def test_what_is_too_much_alone_is_not_kept():
    cache: Kept[int, str] = Kept(10_000)
    cache.add(1, "large", 20_000)
    assert (cache.get(1, ""), cache.bytes) == ("", 0)


def test_a_function_is_called_again_for_what_is_gone():
    calls: list[int] = []

    @kept(lambda number: KEPT_BYTES_MAX // 4)
    def made(number: int) -> None:
        calls.append(number)

    for number in (1, 1, 2, 3, 1, 4, 2):
        made(number)
    assert calls == [1, 2, 3, 4, 2]


def test_schemas_are_forgotten_and_asked_for_again():
    asked: list[int] = []

    def load(number: int) -> Schema:
        asked.append(number)
        # A long text that belongs to a field: a schema need not have many columns to be large.
        field = pa.field(f"c{number}", pa.int64(), metadata={"doc": "x" * 400_000})
        return Schema(pa.schema([field]))

    known = KnownSchemas(load)
    schema = known.get(1)
    count = KEPT_BYTES_MAX // size_of(schema) + 1
    for number in range(1, count + 1):
        assert known.get(number).names == [f"c{number}"]
        assert known.get(number) is known.at_hand(number)
    assert known.at_hand(1) is None
    assert known.get(1).names == ["c1"]
    assert asked == [*range(1, count + 1), 1]


@pytest.mark.parametrize(
    "function",
    [_parse, _row_shape, row_template, _plan_of, promotion, converter_of],
    ids=lambda function: function.__name__.strip("_"),
)
def test_what_is_made_of_schemas_is_weighed(function):
    assert not hasattr(function, "cache_info"), "lru_cache counts, however large they are"
    assert hasattr(function, "__wrapped__")
