"""Mainstem for asyncio: the same names as `mainstem`, awaited.

async with mainstem.aio.connect("mainstem://localhost:7070") as hub:      # or mainstem.aio.open("./data")
    async with hub.producer() as producer, hub.consumer("orders") as consumer:
        ack = await producer.send("orders", b"...")                        # waits if the buffer is full
        shard, offset = await ack                                          # durable
        async for record in consumer:
            ...

What is opened (a hub, a producer, a consumer) is awaited, or entered with `async with`, which closes it, too. A hub
belongs to the event loop that it was opened in. A consumer that waits costs no thread, and nothing looks for it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainstem.aio.classes import (
        Access,
        Ack,
        BatchAck,
        Consumer,
        GroupConsumer,
        Groups,
        Hub,
        OrderedBatches,
        Producer,
        SeveralConsumer,
        Streams,
        Transaction,
    )
    from mainstem.aio.hub import Opening

__all__ = [
    "Access",
    "Ack",
    "BatchAck",
    "Consumer",
    "GroupConsumer",
    "Groups",
    "Hub",
    "OrderedBatches",
    "Producer",
    "SeveralConsumer",
    "Streams",
    "Transaction",
    "connect",
    "open",
]


def __getattr__(name: str) -> Any:
    """The classes are loaded when first asked for: with them come pyarrow and numpy."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mainstem.aio import classes

    return getattr(classes, name)


def __dir__() -> list[str]:
    return __all__


def open(path: "str | Path", *, read_only: bool | None = None, auto_create: bool = False) -> "Opening[Hub]":  # noqa: A001
    """Open the log in a folder of this machine, in this process; see `mainstem.open`."""
    from mainstem.aio.hub import open_folder

    return open_folder(path, read_only=read_only, auto_create=auto_create)


def connect(
    url: str = "mainstem://127.0.0.1:7070",
    *,
    timeout: float = 10.0,
    token: str | None = None,
    token_file: "str | Path | None" = None,
    ca: "str | Path | None" = None,
    certificate: "str | Path | None" = None,
    key: "str | Path | None" = None,
) -> "Opening[Hub]":
    """Connect to a server; see `mainstem.connect`."""
    from mainstem.aio.hub import connect_to
    from mainstem.transport.credentials import Credentials

    credentials = Credentials(token, token_file=token_file, ca=ca, certificate=certificate, key=key)
    return connect_to(url, timeout=timeout, credentials=credentials)
