"""The classes of what a hub gives, under the names that `mainstem` shows them by, for programs that annotate."""

from mainstem.consume.consumer import Consumer
from mainstem.consume.found import Found
from mainstem.consume.record import Record, RecordBatch
from mainstem.consume.sequence import OrderedBatch, OrderedBatches
from mainstem.core.schema import Schema
from mainstem.hub.hub import Hub
from mainstem.produce.chunk import Ack, BatchAck
from mainstem.produce.producer import Producer
from mainstem.transport.port import Erasure, SchemaInfo, StreamInfo

__all__ = [
    "Ack",
    "BatchAck",
    "Consumer",
    "Erasure",
    "Found",
    "Hub",
    "OrderedBatch",
    "OrderedBatches",
    "Producer",
    "Record",
    "RecordBatch",
    "Schema",
    "SchemaInfo",
    "StreamInfo",
]
