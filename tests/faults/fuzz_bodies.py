"""Hostile bodies to the decoders of HTTP, in this process: rows of the schema, or an error that says what is wrong.

Bodies of lines, JSON, CSV and Arrow, plain and compressed, whole and in pieces, to streams with a schema and without.
Whatever is taken, the gateway that checks what producers send would take too.
"""

import random
from pathlib import Path
from typing import TYPE_CHECKING, cast

import mainstem
from mainstem.core.errors import InternalError, MainstemError
from mainstem.core.limits import RECORD_BYTES_MAX
from mainstem.hub.hub import Hub
from mainstem.produce.gateway import Gateway
from mainstem.produce.posting import READERS, Posting
from mainstem.server.http.bodies import unpacker
from mainstem.server.http.problems import HttpRefusal
from mainstem.transport.port import StreamInfo
from tests.faults.trials import Trials
from tests.fuzz.http_fuzz import SCHEMA, HttpFuzz

if TYPE_CHECKING:
    from mainstem.hub.embedded import LogPort

_BODY_BYTES_MAX = 4 << 20


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one body."""
    result = Trials()
    fuzz = HttpFuzz(seed)
    rng = random.Random(f"bodies {seed}")
    with mainstem.open(folder / "bodies") as hub:
        log = cast("LogPort", hub._port).log
        gateway = Gateway(log.ledger.load_stream, RECORD_BYTES_MAX, log.schema, log.ledger.load_versions)
        streams = [hub.streams.create("typed", schema=SCHEMA, key="name"), hub.streams.create("plain")]
        while result.trials < trials and len(result.findings) <= 5:
            kind, encoding, body = fuzz.body()
            result.trials += 1
            try:
                result.acknowledged += _take(hub, gateway, rng.choice(streams), kind, encoding, body, rng)
            except InternalError as error:
                result.add_finding(f"seed {seed}, body {result.trials}: {error}; {kind} {encoding} {body[:500]!r}")
            except (MainstemError, HttpRefusal):
                continue
            except Exception as error:  # that is what is looked for
                text = f"{type(error).__name__}: {error}; {kind} {encoding} {body[:500]!r}"
                result.add_finding(f"seed {seed}, body {result.trials}: {text}")
    return result


def _take(
    hub: Hub, gateway: Gateway, info: StreamInfo, kind: str, encoding: str, body: bytes, rng: random.Random
) -> int:
    """How many records came of it."""
    unpack = unpacker(encoding)
    size = rng.choice((len(body) + 1, len(body) // 2 + 1, 7)) if len(body) < 5_000 else len(body)
    plain = [piece for at in range(0, len(body), size) for piece in unpack.feed(body[at : at + size])]
    plain += unpack.finish()
    if sum(map(len, plain)) > _BODY_BYTES_MAX:
        return 0
    posting = Posting(hub._port, info, on_bad="raise")
    reader = READERS[kind](posting)
    for piece in plain:
        reader.feed(piece)
    for _ in reader.finish():
        pass
    batches = posting.finish()
    for batch in batches:
        admitted = gateway.admit(batch.header, bytes(batch.payload), acknowledge=True)
        if isinstance(admitted, MainstemError):
            raise InternalError(f"taken, and refused by the gateway: {admitted}")
    return sum(batch.header.count for batch in batches)
