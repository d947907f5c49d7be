"""Messages made without pyarrow are the messages pyarrow makes."""

import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core import layouts, payload
from mainstem.core.errors import InvalidPayload
from mainstem.core.layouts import FEW, HAS_KEY
from mainstem.core.message import is_plain, plain_message

_RECORDS = st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=40)), min_size=1, max_size=FEW - 1)


@given(_RECORDS)
def test_values_without_keys_are_the_bytes_of_pyarrow(records: list[tuple[bytes, bytes]]):
    values = [value for value, _ in records]
    assert plain_message(0, [values]) == layouts.build(values).serialize().to_pybytes()


@given(_RECORDS)
def test_values_with_keys_are_the_bytes_of_pyarrow(records: list[tuple[bytes, bytes]]):
    values, keys = [value for value, _ in records], [key for _, key in records]
    assert plain_message(HAS_KEY, [keys, values]) == layouts.build(values, keys).serialize().to_pybytes()


@given(_RECORDS, st.booleans(), st.sampled_from(["lz4", None]))
def test_a_few_records_are_encoded_alike_both_ways(
    records: list[tuple[bytes, bytes]], with_keys: bool, compression: str | None
):
    values = [value for value, _ in records]
    keys = [key for _, key in records] if with_keys else None
    few = payload.encode_few(values, keys, compression)
    assert few in (None, payload.encode(layouts.build(values, keys), compression))


def test_what_takes_the_long_way():
    assert payload.encode_few([b"x"], None, "lz4") is not None
    assert payload.encode_few([None], None, "lz4") is None
    assert payload.encode_few([b"x"] * FEW, None, "lz4") is None
    assert payload.encode_few([bytes(100_000)], None, None) is None
    assert payload.encode_few([bytes(10_000)], None, "lz4") is None
    with pytest.raises(TypeError):
        plain_message(0, [[None]])  # type: ignore[list-item]


def test_neither_a_message_nor_a_wide_batch_costs_the_import_of_pandas():
    """`pa.array` and its like import it on first use, which takes longer than a thousand sends."""
    code = (
        "import sys; from mainstem.core import payload; payload.encode_few([b'v'], [b'k'], None); "
        "payload.encode_few([b'v'], None, None); from mainstem.core import layouts; "
        "layouts.widen(layouts.build([b'v']), 0, 5); sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("size", [0, 1, 8, 100])
def test_a_lone_value_that_was_changed_is_looked_through_like_any_other(size: int, monkeypatch: pytest.MonkeyPatch):
    message = plain_message(0, [[b"v" * size]])
    changed = [message, message + bytes(8), message[:-8]]
    changed += [
        message[:at] + bytes([message[at] ^ 1 << bit]) + message[at + 1 :]
        for at in range(len(message))
        for bit in (0, 7)
    ]

    def verdicts() -> list[str]:
        return [_verdict(one) for one in changed]

    short = verdicts()
    monkeypatch.setattr("mainstem.core.message._is_lone", lambda message: False)
    assert short == verdicts()
    assert short[0] == "True"
    assert len(set(short)) > 3


def _verdict(message: bytes) -> str:
    try:
        return str(is_plain(0, 1, len(message), message))
    except (InvalidPayload, struct.error) as error:
        return repr(error)
