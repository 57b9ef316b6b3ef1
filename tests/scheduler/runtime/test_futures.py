import threading
from concurrent.futures import Future

import pytest

from scheduler.placement.place import Placement
from scheduler.runtime.failures import HangError
from scheduler.runtime.futures import again_after_a_hang

GPU = Placement("gpu", "cpu", (), "gpu", "blocking", True, "")


def test_other_errors_are_handed_on():
    first = Future()
    found = again_after_a_hang(first, lambda: pytest.fail("there is nothing to try again"))
    first.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        found.result(1)


def test_hang_is_tried_again_on_a_thread_of_its_own():
    first, threads = Future(), []

    def run():
        threads.append(threading.current_thread())
        return 4

    found = again_after_a_hang(first, run)
    first.set_exception(HangError.of("s1.gpu", GPU, 1.0))
    assert found.result(60) == 4
    assert threads != [threading.current_thread()]


def test_second_try_that_fails_is_the_error():
    first = Future()
    found = again_after_a_hang(first, lambda: 1 / 0)
    first.set_exception(HangError.of("s1.gpu", GPU, 1.0))
    with pytest.raises(ZeroDivisionError):
        found.result(60)
