"""The link: it forwards, holds answers back, and breaks connections."""

import socket
import threading

import pytest

from mainstem.testing.link import Link


@pytest.fixture
def echo():
    """The address of a server that answers every piece with itself, and the pieces it got."""
    got: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection):
        with connection:
            try:
                while piece := connection.recv(100):
                    got.append(piece)
                    connection.sendall(piece)
            except OSError:
                return

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}", got
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def connect(link):
    host, _, port = link.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=5)


def is_ended(client):
    """Whether the other side ended the connection, politely or not."""
    try:
        return client.recv(100) == b""
    except ConnectionError:
        return True


def test_it_forwards_both_ways(echo):
    address, _ = echo
    with Link(address) as link, connect(link) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"


def test_held_answers_come_when_they_are_released(echo):
    address, got = echo
    with Link(address) as link, connect(link) as client:
        link.hold_answers()
        client.sendall(b"hello")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(100)
        assert got == [b"hello"]
        client.settimeout(5)
        link.release_answers()
        assert client.recv(100) == b"hello"


def test_a_cut_loses_what_was_held(echo):
    address, got = echo
    with Link(address) as link:
        with connect(link) as client:
            link.hold_answers()
            client.sendall(b"hello")
            while not got:
                pass
            link.cut()
            assert is_ended(client)
        with connect(link) as client:
            client.sendall(b"again")
            assert client.recv(100) == b"again"


def test_where_nothing_listens_connections_end():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with Link(address) as link, connect(link) as client:
        assert is_ended(client)
