"""Mainstem: one log from where data is written to everywhere it is needed.

hub = mainstem.open("./data")                        # in this process
hub = mainstem.connect("mainstem://localhost:7070")  # a server; the same object

The classes of what a hub gives (`Hub`, `Producer`, `Consumer`, ...) are here to annotate with, not to be called.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "Mainstem does not run on Windows: it relies on fork-safe file locks, pwritev and uvloop, which Windows lacks. "
        "Use it under WSL 2, or connect from there to a server on Linux."
    )

from mainstem.core.cursor import Cursor, Cursors
from mainstem.core.errors import (
    BackupUnusable,
    BufferFull,
    Busy,
    Closed,
    ConnectionLost,
    DataLoss,
    DeadlineExceeded,
    DeliveryRefused,
    DiskFull,
    Fenced,
    FolderLocked,
    FolderUnusable,
    Forbidden,
    ForkedHub,
    GroupBusy,
    IncompatibleSchema,
    InternalError,
    InvalidCursor,
    InvalidName,
    InvalidPayload,
    InvalidPredicate,
    InvalidRecord,
    InvalidRequest,
    InvalidSchema,
    InvalidSetting,
    LedgerDamaged,
    LeftOut,
    MainstemError,
    MissingRequirement,
    OutOfSequence,
    ProducerFenced,
    ProtocolError,
    QuotaExceeded,
    ReadOnly,
    RecordTooLarge,
    Refused,
    Retriable,
    SchemaMismatch,
    ServerStopping,
    StaleGeneration,
    StreamDeleted,
    StreamExists,
    TableUnusable,
    TransactionAborted,
    Unauthenticated,
    Unavailable,
    UndecodedRecords,
    UnknownGroup,
    UnknownProducer,
    UnknownStream,
    UnknownTransaction,
    WriterForgotten,
)

if TYPE_CHECKING:
    from mainstem.hub.classes import (
        Ack,
        BatchAck,
        Consumer,
        Erasure,
        Found,
        GroupConsumer,
        GroupInfo,
        Hub,
        OrderedBatch,
        OrderedBatches,
        Producer,
        Record,
        RecordBatch,
        Schema,
        SchemaInfo,
        SeveralConsumer,
        SpreadConsumer,
        StreamInfo,
        Transaction,
    )

__version__ = "0.1.0"

__all__ = [
    "Ack",
    "BackupUnusable",
    "BatchAck",
    "BufferFull",
    "Busy",
    "Closed",
    "ConnectionLost",
    "Consumer",
    "Cursor",
    "Cursors",
    "DataLoss",
    "DeadlineExceeded",
    "DeliveryRefused",
    "DiskFull",
    "Erasure",
    "Fenced",
    "FolderLocked",
    "FolderUnusable",
    "Forbidden",
    "ForkedHub",
    "Found",
    "GroupBusy",
    "GroupConsumer",
    "GroupInfo",
    "Hub",
    "IncompatibleSchema",
    "InternalError",
    "InvalidCursor",
    "InvalidName",
    "InvalidPayload",
    "InvalidPredicate",
    "InvalidRecord",
    "InvalidRequest",
    "InvalidSchema",
    "InvalidSetting",
    "LedgerDamaged",
    "LeftOut",
    "MainstemError",
    "MissingRequirement",
    "OrderedBatch",
    "OrderedBatches",
    "OutOfSequence",
    "Producer",
    "ProducerFenced",
    "ProtocolError",
    "QuotaExceeded",
    "ReadOnly",
    "Record",
    "RecordBatch",
    "RecordTooLarge",
    "Refused",
    "Retriable",
    "Schema",
    "SchemaInfo",
    "SchemaMismatch",
    "ServerStopping",
    "SeveralConsumer",
    "SpreadConsumer",
    "StaleGeneration",
    "StreamDeleted",
    "StreamExists",
    "StreamInfo",
    "TableUnusable",
    "Transaction",
    "TransactionAborted",
    "Unauthenticated",
    "Unavailable",
    "UndecodedRecords",
    "UnknownGroup",
    "UnknownProducer",
    "UnknownStream",
    "UnknownTransaction",
    "WriterForgotten",
    "connect",
    "open",
]


def __getattr__(name: str) -> Any:
    """The classes are loaded when first asked for: with them come pyarrow and numpy."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mainstem.hub import classes

    return getattr(classes, name)


def __dir__() -> list[str]:
    return __all__


def open(path: "str | Path", *, read_only: bool | None = None, auto_create: bool = False) -> "Hub":  # noqa: A001
    """Open the log in a folder of this machine, in this process; the folder is made if it is missing.

    One process writes a folder; others may read and follow it. If another one writes it, the hub returned only reads:
    pass `read_only=False` to get FolderLocked instead, `read_only=True` to never write. `auto_create` makes streams
    when they are first written to.
    """
    from mainstem.hub.hub import open_folder

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
) -> "Hub":
    """Connect to a server. Raises ConnectionLost if none answers within `timeout` seconds; afterwards the hub
    reconnects by itself.

    `mainstems://` is TLS: the server must show a certificate that `ca` has signed, or an authority of the system.
    `token` says who you are; `token_file` holds it, and is read at every connection; without either it is that of the
    variable MAINSTEM_TOKEN, if there is one. `certificate` and `key` say the same where the server knows their
    authority.
    """
    from mainstem.hub.hub import connect_to
    from mainstem.transport.credentials import Credentials

    credentials = Credentials(token, token_file=token_file, ca=ca, certificate=certificate, key=key)
    return connect_to(url, timeout=timeout, credentials=credentials)
