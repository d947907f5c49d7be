"""Record a conversation of a client and a server: tests/testdata/protocol-<version>.json.

    python -m tools.conversation

Run it from the root of the repository, with the code of the version in question first in PYTHONPATH.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import mainstem
from mainstem.testing.link import Link
from mainstem.testing.server import ServerProcess
from mainstem.transport.wire import VERSION, Kind
from tests.formats import conversation, golden


class RecordingLink(Link):
    """A link that writes down what passes, message by message."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.said: list[conversation.Said] = []

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, holds: bool) -> None:
        data = bytearray()
        while piece := await reader.read(1 << 16):
            data += piece
            # Noted before it goes on: an answer never stands before what it answers.
            self.said += [conversation.Said(not holds, message) for message in conversation.cut(data)]
            writer.write(piece)
            await writer.drain()


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="mainstem-conversation-") as name:
        folder = golden.unpack(1, Path(name) / "data")
        with ServerProcess(folder) as server:
            link = RecordingLink(server.address)
            with link:
                hub = mainstem.connect(f"mainstem://{link.address}")
                results = conversation.converse(hub)
                server.stop()
                # What the server says last is on its way.
                time.sleep(0.5)
                hub.close()
    said = [message for message in link.said if message.kind not in (Kind.PING, Kind.PONG)]
    # After the goodbye the client knocks again, at a door that is closed.
    last = max(place for place, message in enumerate(said) if message.kind == Kind.GOODBYE)
    path = conversation.save(VERSION, said[: last + 1], results)
    print(f"{path}: {len(said)} messages, {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
