"""The classes of what a hub gives, under the names that `mainstem` shows them by, for programs that annotate."""

from mainstem.consume.consumer import Consumer
from mainstem.consume.found import Found
from mainstem.consume.group_consumer import GroupConsumer
from mainstem.consume.record import Record, RecordBatch
from mainstem.consume.sequence import OrderedBatch, OrderedBatches
from mainstem.consume.several import SeveralConsumer
from mainstem.consume.spread_consumer import SpreadConsumer
from mainstem.core.schema import Schema
from mainstem.hub.hub import Hub
from mainstem.produce.chunk import Ack, BatchAck
from mainstem.produce.producer import Producer
from mainstem.produce.transaction import Transaction
from mainstem.transport.port import Erasure, SchemaInfo, StreamInfo
from mainstem.transport.sharing import GroupInfo

__all__ = [
    "Ack",
    "BatchAck",
    "Consumer",
    "Erasure",
    "Found",
    "GroupConsumer",
    "GroupInfo",
    "Hub",
    "OrderedBatch",
    "OrderedBatches",
    "Producer",
    "Record",
    "RecordBatch",
    "Schema",
    "SchemaInfo",
    "SeveralConsumer",
    "SpreadConsumer",
    "StreamInfo",
    "Transaction",
]
