"""The launcher of server processes and the fixtures, against real servers."""

import pytest

import mainstem
from mainstem.testing.server import ServerFailed, ServerProcess

pytest_plugins = ["mainstem.testing.fixtures"]


def test_a_killed_server_comes_back_at_the_same_address(mainstem_server):
    address = mainstem_server.address
    with mainstem.connect(mainstem_server.url) as hub:
        hub.streams.create("kept")
        mainstem_server.kill()
        assert not mainstem_server.is_running
        mainstem_server.start()
        assert mainstem_server.address == address
        assert mainstem_server.start_seconds > 0
        assert mainstem_server.memory_bytes() > 1 << 20
        assert [info.name for info in hub.streams.list()] == ["kept"]


def test_a_server_that_cannot_start_says_why(tmp_path):
    with ServerProcess(tmp_path / "data"):
        second = ServerProcess(tmp_path / "data")
        with pytest.raises(ServerFailed, match="being written by"):
            second.start()


def test_using_a_server_that_was_not_started_fails(tmp_path):
    with pytest.raises(ServerFailed, match="not started"):
        ServerProcess(tmp_path / "data").kill()


def test_the_hub_fixture_is_an_empty_log(mainstem_hub):
    assert mainstem_hub.streams.list() == []
    mainstem_hub.streams.create("one")
    with mainstem_hub.producer() as producer:
        assert producer.send("one", b"first").result(5) == (0, 0)
