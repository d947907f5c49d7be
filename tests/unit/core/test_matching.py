"""Which column of one schema is which of another."""

import time

import pyarrow as pa

from mainstem.core.matching import matched
from mainstem.core.schema import described


def names(readers: list[pa.Field], writers: list[pa.Field]) -> dict[str, str | None]:
    return {field.name: None if was is None else was.name for field, was in matched(readers, writers)}


def column(name: str, *aliases: str) -> pa.Field:
    return described(pa.field(name, pa.int64()), aliases=aliases)


def test_a_name_goes_before_an_alias_of_the_reader_and_that_before_one_of_the_writer():
    assert names([column("a", "b"), column("b")], [column("b"), column("c", "a")]) == {"a": "c", "b": "b"}
    assert names([column("a", "b")], [column("c", "a"), column("b")]) == {"a": "b"}
    assert names([column("a")], [column("c", "a"), column("d", "a")]) == {"a": "c"}


def test_no_column_is_two():
    assert names([column("a"), column("b")], [column("c", "a", "b")]) == {"a": "c", "b": None}
    assert names([column("a", "c"), column("b", "c")], [column("c")]) == {"a": "c", "b": None}


def test_two_thousand_renamed_columns_are_found_at_once():
    old = [column(f"a{number}") for number in range(2_000)]
    new = [column(f"b{number}", f"a{number}") for number in range(2_000)]
    begun = time.process_time()
    assert names(new, old) == {f"b{number}": f"a{number}" for number in range(2_000)}
    assert names(old, new) == {f"a{number}": f"b{number}" for number in range(2_000)}
    assert None in names(old, [column(f"c{number}", f"d{number}") for number in range(2_000)]).values()
    assert time.process_time() - begun < 1
