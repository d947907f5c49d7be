"""A JSON array that is cut has the elements that a decoder finds, however it comes."""

import json
import random

import pytest

from mainstem.core.errors import InvalidRecord, RecordTooLarge
from mainstem.core.limits import RECORD_BYTES_MAX
from mainstem.produce import json_array
from mainstem.produce.json_array import JsonArray


def cut(text: bytes, at_once: int = 1 << 20) -> list[bytes]:
    assert text[:1] == b"["
    array = JsonArray()
    found = [
        element
        for begin in range(1, len(text), at_once)
        for elements in array.feed(text[begin : begin + at_once])
        for element in elements
    ]
    array.finish()
    assert len(found) == array.count
    return found


def anything(dice: random.Random, depth: int = 0) -> object:
    kind = dice.randrange(8 if depth < 4 else 5)
    if kind < 3:
        return "".join(dice.choice('a,"\\[]{}: \n/é') for _ in range(dice.randrange(6)))
    if kind < 5:
        return dice.choice([None, True, 0, -1.5e3, ""])
    if kind == 5:
        return [anything(dice, depth + 1) for _ in range(dice.randrange(4))]
    return {str(anything(dice, 9)): anything(dice, depth + 1) for _ in range(dice.randrange(4))}


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 1 << 17])
def test_the_elements_are_those_that_a_decoder_finds(monkeypatch, piece_bytes):
    monkeypatch.setattr(json_array, "_PIECE_BYTES", piece_bytes)
    dice = random.Random(piece_bytes)
    for _ in range(200):
        wanted = [anything(dice) for _ in range(dice.randrange(5))]
        text = json.dumps(wanted, indent=dice.choice([None, 2]), ensure_ascii=dice.random() < 0.5)
        found = cut(text.encode() + dice.choice([b"", b" \r\n"]), dice.choice([1, 5, 1 << 20]))
        assert [json.loads(element) for element in found] == wanted


def test_what_is_no_array_of_json_is_not_taken_for_one():
    """An array passes if it is JSON, as far as that is not for the elements to say."""
    dice = random.Random(3)
    taken = 0
    for _ in range(20_000):
        text = b"[" + bytes(dice.choice(b'[]{},"\\1 :') for _ in range(dice.randrange(9)))
        try:
            wanted = json.loads(text)
        except json.JSONDecodeError:
            wanted = None
        try:
            found = [json.loads(element) for element in cut(text, dice.choice([1, 2, 100]))]
        except (InvalidRecord, json.JSONDecodeError):
            found = None
        assert found == wanted, text
        taken += found is not None
    assert taken > 200


@pytest.mark.parametrize(
    "text", [b"[", b"[1", b"[1,]", b"[,1]", b"[1,,2]", b"[1]]", b"[1] x", b"[1}", b'["]', b"[,]", b"[\x0b]", b"[1]\x0c"]
)
def test_arrays_that_are_none(text):
    with pytest.raises(InvalidRecord, match="the body is not JSON"):
        cut(text)


def test_an_element_without_end_is_not_kept():
    text = b'[{},"' + b"x" * (RECORD_BYTES_MAX + 1)
    with pytest.raises(RecordTooLarge, match="row 2 "):
        cut(text)
