import threading
from queue import Empty

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.runtime.mailbox import KEPT, LEAST, LONG_NS, SPIN_NS, WAKE_NS, Expectation, Mailbox

WAITS = st.lists(st.integers(0, 2 * LONG_NS), max_size=3 * KEPT)


def expecting(*waits):
    found = Expectation()
    for ns in waits:
        found.add(ns)
    return found


@given(WAITS)
def test_no_spin_is_longer_than_allowed_and_none_begins_before_the_wait(waits):
    rest, spin = expecting(*waits).advice
    assert 0 <= spin <= SPIN_NS
    assert rest >= 0
    assert spin > 0 or rest == 0
    if len(waits) < LEAST:
        assert (rest, spin) == (0, 0)


@given(st.integers(0, LONG_NS))
def test_wait_that_is_always_the_same_ends_in_the_spin_or_is_slept_through(ns):
    rest, spin = expecting(*[ns] * KEPT).advice
    assert spin == 0 or rest <= ns <= rest + spin


def test_long_wait_is_slept_until_shortly_before_its_end():
    rest, spin = expecting(*[10_000_000] * LEAST).advice
    assert rest == 10_000_000 - WAKE_NS
    assert spin == 2 * WAKE_NS


def test_one_wait_that_is_far_from_the_others_changes_nothing():
    usual = expecting(*[10_000_000] * KEPT).advice
    assert expecting(*[10_000_000] * (KEPT - 1), 90_000_000).advice == usual
    assert expecting(*[10_000_000] * (KEPT - 1), 0).advice == usual


def test_waits_that_are_all_over_the_place_are_slept_through():
    assert expecting(*range(0, 80_000_000, 10_000_000)).advice == (0, 0)


def test_only_the_last_waits_count():
    assert expecting(*[90_000_000] * KEPT, *[5_000_000] * KEPT).advice == expecting(*[5_000_000] * KEPT).advice


@pytest.fixture(params=[False, True], ids=["sleeps", "spins"])
def mailbox(request):
    return Mailbox(spins=request.param)


def test_items_come_in_order(mailbox):
    for each in range(5):
        mailbox.put(each)
    assert mailbox.qsize() == 5
    assert [mailbox.get("a") for _ in range(4)] == [0, 1, 2, 3]
    assert mailbox.get_nowait() == 4
    with pytest.raises(Empty):
        mailbox.get_nowait()


def test_wait_ends_after_its_time(mailbox):
    for _ in range(2 * LEAST):
        with pytest.raises(Empty):
            mailbox.get("a", 0.001)


@pytest.mark.parametrize("pause", [0.0, 0.0003, 0.002])
def test_every_item_arrives_once_whatever_the_wait_is(mailbox, pause):
    """Both sides wait for each other, as a session's threads do: spins that begin, end and miss."""
    back = Mailbox(spins=mailbox.spins)
    rested = threading.Event()

    def answer():
        while (item := mailbox.get("question")) is not None:
            if pause:
                rested.wait(pause)
            back.put(item)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        for each in range(200):
            mailbox.put(each)
            assert back.get("answer", 60) == each
    finally:
        mailbox.put(None)
        thread.join(60)
    assert not thread.is_alive()
    assert back.qsize() == 0


def test_nothing_is_an_item_too(mailbox):
    """What ends a thread is None, and must not look like a wait that missed."""
    for _ in range(2 * LEAST):
        threading.Timer(0.002, mailbox.put, (None,)).start()
        assert mailbox.get("a", 60) is None


def test_what_is_remembered_is_bounded():
    mailbox = Mailbox(spins=True)
    for each in range(3 * 4096):
        mailbox._waits.append((each, 1))
        mailbox._learn()
    assert len(mailbox._expected) <= 4096
