"""One thread that looks for changes, for all who wait for one, and only while somebody does."""

import threading

from mainstem.hub.folder_watch import FolderWatch


def watchers() -> int:
    return sum(thread.name == "mainstem-watch" for thread in threading.enumerate())


def test_those_who_know_an_older_version_are_called_once():
    version = 1
    watch = FolderWatch(lambda: version)
    assert watchers() == 0
    called = [threading.Event() for _ in range(10)]
    for event in called:
        watch.call_when_changed(1, event.set)
    assert watchers() == 1
    assert not called[0].wait(0.05)
    version = 2
    assert all(event.wait(10) for event in called)
    late, next_one = threading.Event(), threading.Event()
    watch.call_when_changed(1, late.set)
    watch.call_when_changed(2, next_one.set)
    assert late.wait(10)
    assert not next_one.is_set()
    watch.close()
    assert next_one.wait(10)
    assert watchers() == 0
    after = threading.Event()
    watch.call_when_changed(2, after.set)
    assert after.is_set()


def test_nothing_is_looked_at_for_nobody():
    looks = []

    def version():
        looks.append(1)
        return 1

    watch = FolderWatch(version)
    called = threading.Event()
    watch.call_when_changed(0, called.set)
    assert called.wait(10)
    before = len(looks)
    assert not threading.Event().wait(0.1)
    assert len(looks) <= before + 1
    watch.close()


def test_who_waits_learns_that_it_cannot_be_asked():
    def version():
        raise OSError("gone")

    watch = FolderWatch(version)
    called = threading.Event()
    watch.call_when_changed(1, called.set)
    assert called.wait(10)
    watch.close()
