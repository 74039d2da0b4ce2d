# SPDX-License-Identifier: Apache-2.0
"""Vector clocks: what is known, what a proxy fence covers, and that joining each other does not grow them."""

from epifuse.emulator.clocks import Clock, Dimensions, event


def test_a_clock_knows_what_it_joined_and_not_what_came_later():
    writer, reader = Clock.of(3, 5), Clock.of(4, 1)
    assert not reader.knows(event(3, 5))
    reader.join(writer)
    writer.advance(3, 6)
    assert reader.knows(event(3, 5))
    assert not reader.knows(event(3, 6))
    assert not reader.knows(event(900, 1))


def test_a_proxy_fence_covers_what_was_seen_before_it():
    clock = Clock.of(3, 5)
    assert not clock.knows_fenced(event(3, 5))
    clock.fence_proxy()
    clock.advance(3, 6)
    assert clock.knows_fenced(event(3, 5))
    assert not clock.knows_fenced(event(3, 6))
    clock.learn(event(200, 2))
    assert clock.knows_fenced(event(200, 2))


def test_a_snapshot_stands_still():
    clock = Clock.of(1, 1)
    before = clock.snapshot()
    clock.advance(1, 2)
    assert not before.knows(event(1, 2))


def test_clocks_that_join_each_other_do_not_grow_for_ever():
    first, second = Clock.of(33, 1), Clock.of(70, 1)
    for _ in range(50):
        first.join(second)
        second.join(first)
    assert first.width == second.width == 128


def test_events_have_names():
    dimensions = Dimensions()
    warp = dimensions.new("warp 3")
    stamp = dimensions.start("a copy")
    assert dimensions.describe(event(warp, 9)) == "warp 3"
    assert dimensions.describe(stamp) == "a copy, still in flight"
    assert not Clock.of(warp, 9).knows(stamp)
