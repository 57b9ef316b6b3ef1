import signal
import threading

import pytest

from scheduler.tuning.interrupt import interruption_waits


@pytest.fixture(autouse=True)
def pythons_own_handler():
    """Whatever other tests, or libraries they load, have made of Ctrl-C: SIGINT would end a process without a handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)


def test_interruption_takes_effect_at_the_end_of_the_block():
    done = []

    def work():
        with interruption_waits():
            signal.raise_signal(signal.SIGINT)
            done.append("after it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["after it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_block_that_fails_is_left_as_it_fails():
    with pytest.raises(ValueError, match="inside"), interruption_waits():
        raise ValueError("inside")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_programs_own_handler_is_left_alone():
    seen = []
    usual = signal.signal(signal.SIGINT, lambda number, frame: seen.append("own"))
    try:
        with interruption_waits():
            signal.raise_signal(signal.SIGINT)
            assert seen == ["own"]
    finally:
        signal.signal(signal.SIGINT, usual)


def test_another_thread_runs_the_block_as_it_is():
    done = []

    def work():
        with interruption_waits():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.default_int_handler]
