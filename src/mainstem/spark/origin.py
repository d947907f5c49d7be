"""Where a stream is read from: a server, or a folder; and the port to it, opened once in each process.

An executor that sees the folder of the server reads the blocks themselves, past the server. That it is that folder and
not another of the same name is proven: the server tells a word that it drew when it began to write, which stands in the
folder, and how far the log has come, which its ledger there must have reached. One on a network file system is not read
in this way, however much it is that folder: see `is_on_network`.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from mainstem.core.errors import FolderUnusable, InvalidSetting, MainstemError
from mainstem.hub.embedded import FolderPort
from mainstem.hub.remote import RemotePort
from mainstem.log.folder import word_of_writer
from mainstem.log.surroundings import is_on_network
from mainstem.spark.workers import prepare_worker
from mainstem.transport.credentials import Credentials
from mainstem.transport.port import Port, StatisticsCall

_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Access:
    """What is needed to get at a log: the address of a server and what to show it, or a folder. Can be pickled; shows
    no secret. One of `url` and `data` is set."""

    url: str = ""
    data: str = ""
    token: str = ""
    token_file: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""

    @classmethod
    def to(cls, hub: str, **credentials: str | None) -> "Access":
        """To the log of a server, mainstem://host:7070, or in a folder, also as file:///data/shop."""
        hub = _without_scheme(hub)
        if not hub.strip():
            raise InvalidSetting("the hub is a folder, or the address of a server such as mainstem://127.0.0.1:7070")
        # Tasks run in other processes, perhaps elsewhere in the tree.
        given = {name: value if name == "token" else _absolute(value) for name, value in credentials.items() if value}
        return cls(url=hub.strip(), **given) if "://" in hub else cls(data=_absolute(hub), **given)

    def __repr__(self) -> str:
        return f"<Access {self.url or self.data}>"

    def credentials(self) -> Credentials:
        return Credentials(
            self.token or None,
            token_file=self.token_file or None,
            ca=self.ca or None,
            certificate=self.certificate or None,
            key=self.key or None,
        )


def _without_scheme(hub: str) -> str:
    """The path of a file: URI, as Spark and its file systems write them; all else as it is."""
    if not hub.strip().lower().startswith("file:"):
        return hub
    path = hub.strip()[len("file:") :]
    if path.startswith("//"):
        host, _, path = path[2:].partition("/")
        if host not in ("", "localhost"):
            raise InvalidSetting(
                f"{hub.strip()!r} is a folder of the machine {host!r}; of this one it would be file:///{host}/{path}, "
                "and of another a server gives access: mainstem://HOST:7070"
            )
        path = f"/{path}"
    return unquote(path)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute()) if path else ""


@dataclass(frozen=True, slots=True)
class Origin:
    """A log as a planner found it: how to get at it, its folder if it said so, and how far it had come."""

    access: Access
    folder: str = ""
    word: str = ""
    flush: int = 0


def opened(access: Access) -> Port:
    """The port of a log, for a process that plans: the server's, or the folder's, read only."""
    return _PORTS.get(access, access.data)


def opened_near(origin: Origin) -> Port:
    """The port for a process that reads: the folder if it is proven to be the log's, else the server's."""
    if origin.access.data:
        port = _PORTS.get(origin.access, origin.access.data)
        _require_flush(port, origin)
        return port
    folder = origin.folder
    if folder and origin.word and word_of_writer(Path(folder)) == origin.word and not is_on_network(Path(folder)):
        try:
            port = _PORTS.get(origin.access, folder)
            _require_flush(port, origin)
        except (MainstemError, OSError):
            # Seen, but not readable for this user, or not this log: the server has it.
            _PORTS.drop(origin.access, folder)
        else:
            return port
    return _PORTS.get(origin.access, "")


def forget_near(origin: Origin) -> None:
    """Let the next `opened_near` in this process begin anew: what was read before is in memory, and says nothing about
    the disk as it is."""
    _PORTS.drop(origin.access, origin.access.data or origin.folder)


def _require_flush(port: Port, origin: Origin) -> None:
    """FolderUnusable if a folder has not come as far as the log that was planned with."""
    at = port.call(StatisticsCall()).counters["flushes_applied"]
    if at < origin.flush:
        where = origin.access.data or origin.folder
        raise FolderUnusable(
            f"{where} on this machine ends with flush {at}, and the log that is read had come to {origin.flush}: it is "
            "a copy. Read through the server that has the folder (mainstem serve), whose address is then the hub"
        )


class _Ports:
    """Ports of this process, each opened once: Spark uses a worker again for many tasks. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[Access, str], Port] = {}

    def get(self, access: Access, folder: str) -> Port:
        with self._lock:
            port = self._open.get((access, folder))
            if port is not None and _is_usable(port):
                return port
            port = FolderPort(Path(folder)) if folder else _connected(access)
            self._open[access, folder] = port
        # Here every process comes by that reads, plans or writes, with all that it needs imported.
        prepare_worker()
        return port

    def drop(self, access: Access, folder: str) -> None:
        with self._lock:
            port = self._open.pop((access, folder), None)
        if port is not None:
            port.close()


def _connected(access: Access) -> RemotePort:
    return RemotePort(access.url, _CONNECT_SECONDS, credentials=access.credentials())


def _is_usable(port: Port) -> bool:
    """One whose folder was restored under it is not, nor one of a process from which this was forked."""
    try:
        port.check_usable()
    except MainstemError:
        return False
    return True


_PORTS = _Ports()
