import threading
from time import perf_counter_ns

import pytest

from scheduler.runtime import mailbox as spin
from scheduler.runtime.mailbox import Word, look_ns

pytestmark = pytest.mark.skipif(look_ns() == float("inf"), reason="this system's C library has no linear search")


def test_word_that_is_set_ends_the_watch_at_once():
    word = Word()
    word.set()
    start = perf_counter_ns()
    assert word.watch(60e9)
    assert perf_counter_ns() - start < 30e9


def test_watch_ends_by_itself():
    assert not Word().watch(1000)


def test_what_was_cleared_does_not_count():
    word = Word()
    word.set()
    word.clear()
    assert not word.watch(1000)


def test_word_set_by_another_thread_meanwhile_ends_the_watch():
    """Python's lock is free while it watches, or nobody could set it."""
    word = Word()
    threading.Timer(0.05, word.set).start()
    start = perf_counter_ns()
    while not word.watch(5e9):
        assert perf_counter_ns() - start < 60e9


def test_look_takes_nanoseconds():
    assert 0.1 <= look_ns() < 10_000


def test_system_that_cannot_watch_answers_at_once(monkeypatch):
    monkeypatch.setattr(spin, "_search", lambda: None)
    word = Word()
    assert not word.watch(60e9)
    word.set()
    assert word.watch(60e9)
