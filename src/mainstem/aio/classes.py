"""The classes of what a hub for asyncio gives, under the names that `mainstem.aio` shows them by."""

from mainstem.aio.consumer import Consumer
from mainstem.aio.hub import Hub, Streams
from mainstem.aio.producer import Ack, BatchAck, Producer

__all__ = ["Ack", "BatchAck", "Consumer", "Hub", "Producer", "Streams"]
