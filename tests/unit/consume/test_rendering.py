"""Records as text: nothing in it can be taken for something else, and no terminal can be hurt."""

import pytest

import mainstem
from mainstem.consume.rendering import renderer

SHOWN = {
    b"a\tb": r"a\tb",
    rb"a\tb": r"a\\tb",
    b"\xff": r"\xff",
    rb"\xff": r"\\xff",
    b"\xc2\x9b": r"\u009b",
    "\u202eabc".encode(): r"\u202eabc",
    "\u2028".encode(): r"\u2028",
    "K\u00f6ln".encode(): "K\u00f6ln",
    b"-": r"-",
    b"(deleted)": r"\(deleted)",
    rb"\(deleted)": r"\\(deleted)",
    None: "(deleted)",
}


@pytest.fixture
def lines(tmp_path):
    """The text of records with these keys and values."""

    def shown(records):
        with mainstem.open(tmp_path) as hub:
            hub.streams.create("s")
            with hub.producer() as producer:
                for key, value in records:
                    producer.send("s", value, key=key)
            with hub.consumer("s", start="earliest", follow=False) as consumer:
                render = renderer("text", framed=False)
                found = [line.decode().rstrip("\n") for batch in consumer.batches() for line in render(batch)]
        return [line.split("\t") for line in found]

    return shown


def test_values(lines):
    assert [line[3] for line in lines([(None, value) for value in SHOWN])] == list(SHOWN.values())


def test_a_key_is_no_mark_for_none(lines):
    assert [line[2] for line in lines([(None, b""), (b"-", b""), (rb"\-", b""), (b"k", b"")])] == [
        "-",
        r"\-",
        r"\\-",
        "k",
    ]
