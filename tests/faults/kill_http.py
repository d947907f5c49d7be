"""`kill -9` of a server in the middle of `POST`s that are sent again with their `Idempotency-Key` until they are
answered: nothing is lost, nothing is there twice, and every answer says where the rows are.

Before every other kill answers are held up for a moment: what the server has written by then, its clients do not know.
Every fifth request is so large that it is several batches in each shard, of which only the first one has the key. Every
seventh has a row that does not fit beside those that do: it goes to the dead letters, in the same step.
"""

import gzip
import http.client
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mainstem.testing.link import Link
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults.trials import Trials

_POSTS = 100
_AT_ONCE = 10
_ROWS = 20
_LARGE_EVERY = 5
_DEAD_EVERY = 7
# Of each row of a large request: four megabytes in all.
_LARGE_NAME = b"n" * 200_000
_TRIES = 2_000
_SCHEMA = {"id": "int64", "name": "string"}
_PATH = "/streams/posted/records"
_POST = f"{_PATH}?on_bad=dead_letter"
_BAD = re.compile(rb"no number of (\d+)")
_PACKED = {"Content-Encoding": "gzip"}


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is a kill in the middle of a hundred requests."""
    result = Trials()
    rng = random.Random(f"kill http {seed}")
    answers: dict[int, Any] = {}
    try:
        with ServerProcess(folder / "killed", "--http", "127.0.0.1:0") as server:
            options = {"schema": _SCHEMA, "key": "id", "shards": 3}
            _ask(server.http, "PUT", "/streams/posted", json.dumps(options).encode())
            for trial in range(trials):
                with Link(server.http) as link, ThreadPoolExecutor(_AT_ONCE) as pool:
                    posts = _Posts(link.address)
                    numbers = range(trial * _POSTS, (trial + 1) * _POSTS)
                    waiting = {number: pool.submit(posts.post, number) for number in numbers}
                    posts.wait_for(rng.randrange(_POSTS * 3 // 4))
                    if trial % 2 == 0:
                        link.hold_answers()
                        time.sleep(rng.uniform(0.0, 0.05))
                    server.kill()
                    link.cut()
                    server.start()
                    posts.address = server.http
                    result.trials += 1
                    result.took(server.start_seconds)
                    answers.update((number, future.result()) for number, future in waiting.items())
            _judge(answers, dict(_read(server.http)), result)
            _judge_dead(answers, _ask(server.http, "GET", _PATH.replace("posted", "posted.dead"))[1], result)
    except (ServerFailed, OSError, http.client.HTTPException, AssertionError) as error:
        result.add_finding(f"seed {seed}, kill {result.trials}: {type(error).__name__}: {error}")
    return result


def body_of(number: int) -> bytes:
    """The rows of a request, compressed."""
    name = b"n" if number % _LARGE_EVERY else _LARGE_NAME
    rows = (b'{"id": %d, "name": "%b"}\n' % (id_, name) for id_ in range(number * _ROWS, (number + 1) * _ROWS))
    bad = b'{"id": "no number of %d"}\n' % number if _has_bad(number) else b""
    return gzip.compress(b"".join(rows) + bad, 1)


def _has_bad(number: int) -> bool:
    return number % _DEAD_EVERY == 0


class _Posts:
    """Requests of one trial, each sent until it is answered. Any thread."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._done = threading.Semaphore(0)

    def post(self, number: int) -> Any:
        headers, body = {**_PACKED, "Idempotency-Key": f"request-{number}"}, body_of(number)
        for _ in range(_TRIES):
            try:
                status, text = _ask(self.address, "POST", _POST, body, headers)
            except (OSError, http.client.HTTPException):
                status, text = 0, b""
            if status == 200:
                self._done.release()
                return json.loads(text)
            assert status in (0, 503), f"request {number}: {status} {text!r}"
            time.sleep(0.05)
        raise AssertionError(f"request {number} was never answered")

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self._done.acquire(timeout=60), "the requests are not answered"


def _judge(answers: dict[int, Any], found: dict[tuple[int, int], int], result: Trials) -> None:
    """Compare what was answered with what is there, by shard and offset."""
    counts = Counter(found.values())
    for number, answer in answers.items():
        ids = range(number * _ROWS, (number + 1) * _ROWS)
        result.acknowledged += answer["records"]
        result.lost += sum(not counts[id_] for id_ in ids)
        result.duplicated += sum(max(0, counts[id_] - 1) for id_ in ids)
        said = [
            found.get((run["shard"], offset))
            for run in answer["offsets"]
            for offset in range(run["first"], run["last"] + 1)
        ]
        if sorted(id_ for id_ in said if id_ is not None) != list(ids):
            result.add_finding(f"request {number} was told {answer}, and there are {said}")
    if result.lost or result.duplicated:
        result.add_finding(f"{result.lost} rows are lost, {result.duplicated} are there twice")


def _judge_dead(answers: dict[int, Any], text: bytes, result: Trials) -> None:
    """Each row that does not fit is there once, and was counted."""
    found = Counter(int(number) for line in text.splitlines() for number in set(_BAD.findall(line)))
    wrong = {
        number: (answer["dead"], found[number])
        for number, answer in answers.items()
        if (answer["dead"], found[number]) != ((1, 1) if _has_bad(number) else (0, 0))
    }
    if wrong:
        result.add_finding(f"dead letters, by request, as answered and as there are: {wrong}")


def _read(address: str) -> Iterator[tuple[tuple[int, int], int]]:
    _, text = _ask(address, "GET", f"{_PATH}?columns=id,_shard,_offset")
    for line in text.splitlines():
        row = json.loads(line)
        yield (row["_shard"], row["_offset"]), row["id"]


def _ask(
    address: str, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=15)
    try:
        connection.request(method, path, body, {"Host": "localhost", **(headers or {})})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
