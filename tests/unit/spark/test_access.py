"""What a hub is: a folder, however it is written, or the address of a server."""

from pathlib import Path

import pytest

from mainstem.core.errors import InvalidSetting
from mainstem.spark.origin import Access


@pytest.mark.parametrize(
    "hub",
    [
        "/data/my shop",
        " file:///data/my%20shop ",
        "file:///data/my shop",
        "file:/data/my shop",
        "FILE://localhost/data/my%20shop",
    ],
)
def test_a_folder_may_be_a_uri(hub):
    access = Access.to(hub)
    assert (access.url, access.data) == ("", "/data/my shop")


def test_a_path_is_taken_as_it_is():
    assert Access.to("/data/100%25").data == "/data/100%25"
    assert Access.to("shop").data == str(Path.cwd() / "shop")
    assert Access.to(" mainstem://db1:7070 ").url == "mainstem://db1:7070"


def test_a_folder_of_another_machine_is_refused():
    with pytest.raises(InvalidSetting, match=r"of the machine 'db1'.*file:///db1/data/shop.*mainstem://HOST:7070"):
        Access.to("file://db1/data/shop")


@pytest.mark.parametrize("hub", ["", " ", "file:", " FILE: ", "file:%20"])
def test_what_names_nothing_is_refused(hub):
    with pytest.raises(InvalidSetting, match="the hub is a folder, or the address of a server"):
        Access.to(hub)
