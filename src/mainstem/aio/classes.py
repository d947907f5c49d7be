"""The classes of what a hub for asyncio gives, under the names that `mainstem.aio` shows them by."""

from mainstem.aio.consumer import Consumer
from mainstem.aio.hub import Access, Groups, Hub, Streams
from mainstem.aio.producer import Ack, BatchAck, Producer
from mainstem.aio.sequence import OrderedBatches
from mainstem.aio.shared import GroupConsumer, SeveralConsumer
from mainstem.aio.transaction import Transaction

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
]
