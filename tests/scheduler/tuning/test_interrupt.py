"""Each case that presses Ctrl-C has a process of its own: libraries that other tests load handle signals as well."""

import signal
import subprocess
import sys
import threading

import pytest

from scheduler.tuning.interrupt import interruption_waits

START = (
    "import signal\nfrom scheduler.tuning.interrupt import interruption_waits\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
)


def output(program):
    return subprocess.run([sys.executable, "-c", START + program], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
def test_interruption_takes_effect_at_the_end_of_the_block():
    program = """
try:
    with interruption_waits():
        signal.raise_signal(signal.SIGINT)
        print("inside")
    print("behind")
except KeyboardInterrupt:
    print("interrupted")
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    assert output(program) == ["inside", "interrupted", "True"]


def test_block_that_fails_is_left_as_it_fails():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="inside"), interruption_waits():
        raise ValueError("inside")
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_runs_the_block_as_it_is():
    done = []

    def work():
        with interruption_waits():
            done.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [before]
