"""Hostile HTTP: requests that were changed, cut, repeated and put together anew, and bodies of every kind with them."""

import json
import random
import zlib
from collections.abc import Sequence

import pyarrow as pa

from mainstem.server.http.routes import ROUTES

SCHEMA = {"id": "int64", "name": "string", "at": "timestamp", "tags": "list<string>"}
STREAMS = ("fuzzed", "typed", "nowhere", "_own", "..", "%2e%2e", "a%00b", "x" * 300)
_GROUPS = ("readers", "nobody", "%20", "g" * 300)
_NUMBERS = (b"0", b"-1", b"1", b"99999999999999999999", b"0x10", b"1e9", b"+4", b" 7", b"\xd9\xa3", b"")
_CURSOR = "ms1:" + "0" * 32 + ":1:5:00000000"
_QUERIES: dict[str, Sequence[str]] = {
    "where": (
        "id = 1",
        "name = 'a'",
        "id = ",
        "((((",
        "_offset > 3",
        "id = 1 OR " * 400,
        "nothing = 1",
        "'",
        "\x00",
        "%",
    ),
    "columns": ("id", "id,name", "", ",", "_key", "nothing", "id," * 500),
    "from": ("earliest", "latest", "15m", "2026-01-31T12:00:00Z", "2026-01-31", _CURSOR, "ms1:", "9e99d", "-1s", "NaN"),
    "limit": ("0", "1", "3", "-1", "x", "99999999999999", "٣"),
    "metadata": ("true", "false", "", "2", "TRUE"),
    "on_bad": ("raise", "skip", "dead_letter", "x"),
    "group": ("readers", "nobody", "", "/", "x" * 400),
    "after": ("0", "x", "99999999999999999999999", "-1"),
    "unknown": ("1",),
}
_HEADERS: dict[str, Sequence[str]] = {
    "Accept": (
        *("application/x-ndjson", "text/csv", "application/json", "*/*;q=0", "text/*;q=x", "a/b", ",,,", "*", "/"),
        *("application/vnd.apache.arrow.stream", "application/vnd.apache.parquet"),
    ),
    "Content-Type": ("application/json", "text/csv", "application/x-ndjson", "a/b", "", ";", "application/json;x=\xff"),
    "Content-Encoding": ("gzip", "zstd", "identity", "br", "gzip, gzip", ""),
    "Idempotency-Key": ("k1", "", "x" * 300, "\xe9"),
    "Authorization": ("Bearer x", "Bearer", "Basic eDp5", "bearer " + "y" * 5_000, ""),
    "Origin": ("null", "http://localhost", "http://evil.example", "http://["),
    "Last-Event-ID": (_CURSOR, "x"),
    "Expect": ("100-continue", "x"),
    "Connection": ("close", "keep-alive", "upgrade"),
    "Upgrade": ("websocket", "h2c"),
    "Host": ("localhost", "evil.example", "[::1", "127.0.0.1:99999", "\xff"),
}
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "X" * 50)
_LINES = (
    *(b'{"id": 1, "name": "a"}', b'{"id": "x"}', b'{"id": 1e999}', b"{", b"[]", b"null", b'{"name": "\\ud800"}'),
    *(
        b'{"id": 1, "id": 2}',
        b'{"at": "2026-02-31"}',
        b'{"tags": [' + b"[" * 500,
        b'{"\xff": 1}',
        b"\xef\xbb\xbf{}",
        b"",
    ),
    *(b'{"value": "v", "key": "k"}', b'{"value": {"base64": "x"}}', b'{"value": null}', b'{"id": ' + b"9" * 400 + b"}"),
)
_GOOD_LINES = (
    *(b'{"id": 1, "name": "a"}', b'{"name": "b", "tags": ["x", null]}', b'{"id": null, "at": "2026-01-31T12:00:00Z"}'),
    *(b"{}", b' {"name": "\\u00e9\\ud83d\\ude00", "id": -9223372036854775808} ', b'{"tags": [], "name": "{[,]}"}'),
)
_CSV = (
    b"id,name\n1,a\n",
    b"id\n",
    b"",
    b'id,name\n1,"a\n',
    b"id,id\n1,2\n",
    b"id,name\n1\n",
    b"\xff\xfe",
    b"x" * 9_000,
)
_OPTIONS: Sequence[object] = (
    *(
        {},
        {"shards": 2},
        {"shards": -1},
        {"schema": SCHEMA},
        {"schema": {}},
        {"schema": {"a": "no"}},
        {"key": 7},
        None,
        7,
    ),
    *(
        {"offset": 1 << 70},
        {"before": "x"},
        {"to": "latest"},
        {"offsets": [{}]},
        {"stream": "typed", "cursor": _CURSOR},
    ),
    *({"retention": "1d"}, {"retention": "-1d"}, {"dry_run": 1}, {"x": {"y": [None] * 50}}, {"key": {"base64": "%"}}),
)


_GZIP = 16 + zlib.MAX_WBITS
_ZSTD = pa.Codec("zstd")


class HttpFuzz:
    """Hands out requests, and bodies alone. One thread."""

    def __init__(self, seed: int, token: str = "") -> None:
        self._rng = random.Random(f"http {seed}")
        self._token = token
        self._arrow = _arrow_stream()

    def request(self) -> bytes:
        """One request, more or less."""
        rng = self._rng
        made = self._crafted()
        if rng.random() < 0.5:
            made = self.mutated(made)
        if rng.random() < 0.05:
            made += self._crafted()
        return made

    def body(self) -> tuple[str, str, bytes]:
        """The kind of a body, its encoding, and the bytes."""
        rng = self._rng
        kind, plain = rng.choice((self._lines, self._json, self._csv, self._arrows))()
        if rng.random() < 0.4:
            plain = self.mutated(plain)
        encoding = rng.choice(("identity", "identity", "gzip", "zstd"))
        packed = _packed(encoding, plain)
        return kind, encoding, self.mutated(packed) if rng.random() < 0.1 else packed

    def mutated(self, data: bytes) -> bytes:
        rng = self._rng
        found = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 5))):
            if not found:
                return b"\x00"
            at = rng.randrange(len(found))
            match rng.randrange(6):
                case 0:
                    found[at] = rng.randrange(256)
                case 1:
                    del found[at:]
                case 2:
                    del found[at : at + rng.randint(1, 20)]
                case 3:
                    found[at:at] = rng.randbytes(rng.randint(1, 20))
                case 4:
                    piece = found[at : at + rng.randint(1, 200)]
                    found[at:at] = piece
                case _:
                    found[at:at] = rng.choice((b"\r\n", b"\n", b"\r", b"\x00", b" ", b":", b"\r\n\r\n", *_NUMBERS))
        return bytes(found)

    def _crafted(self) -> bytes:
        rng = self._rng
        row = rng.choice(ROUTES)
        method = row.method if rng.random() < 0.9 else rng.choice(_METHODS)
        name = rng.choice(_GROUPS if row.path.startswith("/groups") else STREAMS)
        path = (
            row.path.replace("{name}", name)
            if rng.random() < 0.95
            else rng.choice(("/", "*", "//x", "http://x/", "/%"))
        )
        query = "&".join(
            f"{key}={_quoted(rng.choice(_QUERIES[key]))}"
            for key in rng.sample(list(_QUERIES), rng.choice((0, 0, 1, 2)))
        )
        head = [f"{method} {path}{'?' * bool(query)}{query} HTTP/1.{rng.choice('1110')}"]
        head += ["Host: localhost"] * (rng.random() < 0.95)
        if self._token:
            head.append(f"Authorization: Bearer {self._token}")
        for key in rng.sample(list(_HEADERS), rng.choice((0, 1, 1, 2))):
            head.append(f"{key}: {rng.choice(_HEADERS[key])}")
        body = b""
        if method in ("POST", "PUT", "PATCH"):
            if row.path.endswith("/records"):
                kind, encoding, body = self.body()
                head += [f"Content-Type: {kind}", f"Content-Encoding: {encoding}"]
            else:
                body = json.dumps(rng.choice(_OPTIONS)).encode()
            head, body = self._framed(head, body)
        return "\r\n".join([*head, "", ""]).encode("latin-1") + body

    def _framed(self, head: list[str], body: bytes) -> tuple[list[str], bytes]:
        match self._rng.randrange(10):
            case 0:
                wrong = self._rng.choice(_NUMBERS).decode("latin-1")
                return [*head, f"Content-Length: {wrong}"], body
            case 1:
                return [*head, f"Content-Length: {len(body)}", "Transfer-Encoding: chunked"], _chunked(body)
            case 2 | 3:
                return [*head, "Transfer-Encoding: chunked"], _chunked(body)
            case _:
                return [*head, f"Content-Length: {len(body)}"], body

    def _lines(self) -> tuple[str, bytes]:
        count = self._rng.choice((1, 2, 3, 30))
        lines = _GOOD_LINES if self._rng.random() < 0.4 else _LINES
        return "application/x-ndjson", b"\n".join(self._rng.choice(lines) for _ in range(count))

    def _json(self) -> tuple[str, bytes]:
        lines = _GOOD_LINES if self._rng.random() < 0.4 else _LINES
        items = b",".join(self._rng.choice(lines) for _ in range(self._rng.randint(0, 5)))
        return "application/json", items if self._rng.random() < 0.2 else b"[" + items + b"]"

    def _csv(self) -> tuple[str, bytes]:
        return "text/csv", self._rng.choice(_CSV)

    def _arrows(self) -> tuple[str, bytes]:
        return "application/vnd.apache.arrow.stream", self.mutated(self._arrow)


def _arrow_stream() -> bytes:
    table = pa.table({"id": list(range(20)), "name": ["n"] * 20})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _packed(encoding: str, plain: bytes) -> bytes:
    match encoding:
        case "gzip":
            return zlib.compress(plain, 1, _GZIP)
        case "zstd":
            found: bytes = _ZSTD.compress(plain, asbytes=True)
            return found
    return plain


def _chunked(body: bytes) -> bytes:
    at = zlib.crc32(body) % (len(body) + 1)
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:at], body[at:]) if part) + b"0\r\n\r\n"


def _quoted(text: str) -> str:
    return "".join(
        chr(byte) if chr(byte).isascii() and chr(byte).isalnum() else f"%{byte:02x}" for byte in text.encode()
    )
