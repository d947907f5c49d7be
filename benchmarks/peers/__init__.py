"""Other systems, each driven the fastest way its own Python client allows in which every message is acknowledged."""

from benchmarks.peers.base import Durability, Peer
from benchmarks.peers.nats import Nats
from benchmarks.peers.redis import Redis, RedisScript

__all__ = ["PEERS", "Durability", "Nats", "Peer", "Redis", "RedisScript"]

PEERS: dict[str, type[Peer]] = {peer.name: peer for peer in (Nats, Redis, RedisScript)}
