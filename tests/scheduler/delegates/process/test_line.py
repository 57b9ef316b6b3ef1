import os
import signal
import threading

import pytest

from predictors.errors import StretchError
from scheduler.delegates.process.line import GoneError, Line


@pytest.fixture
def line():
    found = Line("reference", ())
    yield found
    found.end()


def compiled(line, bundle_dir):
    return line.make(do="compile", model=str(bundle_dir / "stem.onnx"))


def test_answers_find_those_who_asked_in_whatever_order_they_ask(line, bundle_dir):
    numbers = [line.send(do="compile", model=str(bundle_dir / "stem.onnx")) for _ in range(4)]
    assert [line.answer(number)["made"] for number in reversed(numbers)] == [3, 2, 1, 0]


def test_several_threads_get_their_own_answers(line, bundle_dir):
    found = {}

    def ask(key):
        number = line.send(do="compile", model=str(bundle_dir / f"{key}.onnx"))
        try:
            found[key] = line.answer(number)["outputs"]
        except StretchError as error:
            found[key] = error.message

    keys = ["stem", "nowhere", "head"]
    threads = [threading.Thread(target=ask, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "nowhere.onnx" in found["nowhere"]
    assert found["stem"] != found["head"]


def test_new_child_has_made_what_the_old_one_had(line, bundle_dir):
    compiled(line, bundle_dir)
    old = line.pid
    os.kill(old, signal.SIGKILL)
    assert compiled(line, bundle_dir)["made"] == 1
    assert line.pid != old


def test_whoever_waits_for_a_child_that_is_ended_hears_why(line, bundle_dir):
    compiled(line, bundle_dir)
    os.kill(line.pid, signal.SIGSTOP)
    number = line.send(do="compile", model=str(bundle_dir / "stem.onnx"))
    threading.Timer(0.2, line.abort, ("it took too long",)).start()
    with pytest.raises(GoneError, match="it took too long"):
        line.answer(number)
    assert line.aborted
    line.revive()
    assert not line.aborted


def test_nothing_is_asked_of_what_was_closed(line):
    line.end()
    with pytest.raises(GoneError, match="closed"):
        line.make(do="compile", model="x.onnx")
