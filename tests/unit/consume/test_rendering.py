"""Records as text: nothing in it can be taken for something else, and no terminal can be hurt."""

import msgspec
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


@pytest.fixture
def typed(tmp_path):
    """A stream of rows: one from before it had a schema, one that is none, two rows and a tombstone."""
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("s")
        with hub.producer() as producer:
            for value in (b'{"id": 1}', b"\xff"):
                producer.send("s", value, key="k").result(10)
            hub.streams.set_schema("s", {"id": "int64", "text": "string"})
        with hub.producer() as producer:
            producer.send("s", {"id": 2, "text": "a\n\u202eb\\"}, key="k")
            producer.send("s", None, key="k").result(10)
        yield hub


def pieces(hub, output, *, framed=False, columns=None):
    with hub.consumer("s", start="earliest", follow=False, columns=columns, on_bad="keep") as consumer:
        render = renderer(output, framed=framed, columns=columns is not None)
        return [piece for batch in consumer.batches() for piece in render(batch)]


ROW = '{"id":2,"text":"a\\n\u202eb\\\\"}'


def test_rows(typed):
    lines = [piece.decode().rstrip("\n").split("\t", 3)[3] for piece in pieces(typed, "text")]
    assert lines == ['{"id":1,"text":null}', r"\xff", ROW.replace("\u202e", r"\u202e"), "(deleted)"]
    assert pieces(typed, "raw") == [b'{"id":1,"text":null}\n', b"\xff\n", ROW.encode() + b"\n", b"\n"]
    whole = [msgspec.json.decode(piece) for piece in pieces(typed, "json")]
    assert [record["value"] for record in whole] == [
        {"id": 1, "text": None},
        None,
        {"id": 2, "text": "a\n\u202eb\\"},
        None,
    ]
    assert [record.get("undecoded") for record in whole] == [None, {"base64": "/w=="}, None, None]
    assert [record["key"] for record in whole] == ["k"] * 4


def test_some_columns_of_rows(typed):
    assert pieces(typed, "text", columns=["id", "_offset"])[2] == b'{"id":2,"_offset":2}\n'
    assert pieces(typed, "raw", columns=["id"], framed=True)[2] == b'\x08\x00\x00\x00{"id":2}'
