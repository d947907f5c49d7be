"""A client of HTTP with nothing but the standard library."""

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

NDJSON = "application/x-ndjson"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


class Client:
    """One connection, kept alive as far as the server lets it."""

    def __init__(self, address: str, timeout: float = 30.0) -> None:
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))
        self._connection = http.client.HTTPConnection(host, int(port), timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        self._connection.request(method, path, body, named)
        response = self._connection.getresponse()
        return Answer(response.status, {name.lower(): text for name, text in response.getheaders()}, response.read())

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def create(self, name: str, **options: Any) -> None:
        answer = self.ask("PUT", f"/streams/{name}", options)
        assert answer.status == 201, answer

    def post(self, name: str, body: Any, content_type: str = NDJSON, query: str = "", **headers: str) -> Answer:
        return self.ask("POST", f"/streams/{name}/records{query}", body, content_type=content_type, **headers)


class Event(NamedTuple):
    id: str
    kind: str
    data: Any


class Events:
    """A tail, as a browser reads it."""

    def __init__(
        self, address: str, path: str, last_event_id: str | None = None, timeout: float = 20.0, token: str = ""
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout)
        resumed = f"Last-Event-ID: {last_event_id}\r\n" if last_event_id else ""
        known = f"Authorization: Bearer {token}\r\n" if token else ""
        head = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n{resumed}{known}\r\n"
        self.socket.sendall(head.encode())
        self._response = http.client.HTTPResponse(self.socket)
        self._response.begin()
        self.status, self.headers = self._response.status, self._response.headers
        self.last_id = ""

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *exc: object) -> None:
        self._response.close()
        self.socket.close()

    def __iter__(self) -> Iterator[Event]:
        kind, data = "message", b""
        while line := self._response.readline():
            name, _, text = line.rstrip(b"\n").partition(b": ")
            if name == b"id":
                self.last_id = text.decode()
            elif name == b"event":
                kind = text.decode()
            elif name == b"data":
                data += text
            elif not line.strip():
                if data:
                    yield Event(self.last_id, kind, json.loads(data))
                kind, data = "message", b""

    def take(self, count: int) -> list[Event]:
        """The next events. Called once, or not again after fewer came."""
        found: list[Event] = []
        for event in self:
            found.append(event)
            if len(found) == count:
                break
        return found

    def skip_to_position(self) -> str:
        """Read until the server has said where the tail begins."""
        while line := self._response.readline():
            if line.startswith(b"id: "):
                self.last_id = line[4:].strip().decode()
                return self.last_id
        raise AssertionError("the tail ended")
