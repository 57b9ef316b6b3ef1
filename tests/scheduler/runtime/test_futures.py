import gc
import threading
import weakref
from concurrent.futures import Future

import pytest

from scheduler.placement.place import Placement
from scheduler.runtime.failures import HangError
from scheduler.runtime.session import again_after_a_hang

GPU = Placement("gpu", "cpu", (), "gpu", "blocking", True, "")


def test_result_of_the_first_try_is_handed_on():
    first = Future()
    found = again_after_a_hang(first, lambda: pytest.fail("there is nothing to try again"))
    first.set_result(3)
    assert found.result(1) == 3


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


@pytest.mark.slow
def test_first_future_keeps_nothing_of_the_second_try_once_it_is_done():
    class Held:
        def run(self):
            return 5

    held = Held()
    seen, first = weakref.ref(held), Future()
    found = again_after_a_hang(first, held.run)
    del held
    assert seen() is not None
    first.set_result(1)
    assert found.result(1) == 1
    gc.collect()
    assert seen() is None
