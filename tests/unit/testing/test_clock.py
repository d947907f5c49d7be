"""The simulated clock: it stands still until it is moved, and wakes sleepers in order, each at its own time."""

import threading

import pytest

from mainstem.core.clock import Clock
from mainstem.testing.clock import START_US, SimulatedClock


def test_it_is_a_clock_that_stands_still():
    clock: Clock = SimulatedClock()
    assert clock.now_us() == START_US
    assert clock.monotonic() == 0.0
    clock.sleep(0)
    clock.sleep(-1)
    assert clock.monotonic() == 0.0


def test_advance_moves_both_times():
    clock = SimulatedClock(start_us=1_000)
    clock.advance(1.5)
    assert clock.monotonic() == 1.5
    assert clock.now_us() == 1_501_000


def test_many_small_steps_add_up_exactly():
    clock = SimulatedClock(start_us=0)
    for _ in range(10_000):
        clock.advance(0.0001)
    assert clock.monotonic() == 1.0
    assert clock.now_us() == 1_000_000


def test_it_cannot_be_advanced_back_but_the_wall_clock_can_jump():
    clock = SimulatedClock()
    with pytest.raises(ValueError, match="shift_wall"):
        clock.advance(-1)
    clock.shift_wall(-3600)
    assert clock.now_us() == START_US - 3_600_000_000
    assert clock.monotonic() == 0.0


def test_autojump_sleeps_by_moving_the_clock():
    clock = SimulatedClock(autojump=True)
    clock.sleep(0.25)
    assert clock.monotonic() == 0.25


def test_sleepers_wake_in_order_each_at_its_own_time():
    clock = SimulatedClock()
    woken: list[tuple[float, float]] = []

    def sleeper(seconds: float) -> None:
        clock.sleep(seconds)
        woken.append((seconds, clock.monotonic()))

    threads = []
    for seconds in (0.3, 0.1, 0.2, 5.0):
        threads.append(threading.Thread(target=sleeper, args=(seconds,), daemon=True))
        threads[-1].start()
    clock.wait_for_sleepers(4)
    clock.advance(0.05)
    assert clock.sleeper_count == 4
    for count, thread in enumerate((threads[1], threads[2], threads[0]), start=1):
        clock.advance(0.1)
        thread.join(10)
        assert clock.sleeper_count == 4 - count
    assert [seconds for seconds, _ in woken] == [0.1, 0.2, 0.3]
    clock.advance(100)
    threads[3].join(10)
    assert clock.sleeper_count == 0


def test_one_long_advance_wakes_everyone():
    clock = SimulatedClock()
    threads = [threading.Thread(target=clock.sleep, args=(n / 7,), daemon=True) for n in range(1, 20)]
    for thread in threads:
        thread.start()
    clock.wait_for_sleepers(len(threads))
    clock.advance(10)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert clock.monotonic() == 10


def test_waiting_for_sleepers_that_do_not_come_times_out():
    with pytest.raises(TimeoutError, match="0 of 1 threads"):
        SimulatedClock().wait_for_sleepers(1, timeout=0.01)
