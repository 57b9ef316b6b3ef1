import os
import threading

import pytest

from scheduler.cores import available_cores, pin_thread, pinned

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin threads")


def test_available_cores_are_those_of_the_process_each_once():
    assert sorted(available_cores()) == sorted(os.sched_getaffinity(0))


def test_pinned_binds_the_thread_and_gives_its_set_back_after_an_error():
    before = os.sched_getaffinity(0)
    core = min(before)
    inside = []

    def fail():
        with pinned((core,)):
            inside.append(os.sched_getaffinity(0))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside == [{core}]
    assert os.sched_getaffinity(0) == before


def test_pinning_to_nothing_changes_nothing():
    before = os.sched_getaffinity(0)
    pin_thread(())
    with pinned(()):
        assert os.sched_getaffinity(0) == before


def test_pin_thread_binds_only_the_thread_that_calls_it():
    before, inside = os.sched_getaffinity(0), []
    core = max(before)

    def work():
        pin_thread((core,))
        inside.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [{core}]
    assert os.sched_getaffinity(0) == before
