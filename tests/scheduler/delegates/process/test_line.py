import os
import signal
import threading

import pytest

from predictors.errors import StretchError
from scheduler.delegates.process.delegate import GoneError, Line


@pytest.fixture
def line():
    found = Line("reference", ())
    yield found
    found.end()


def compiled(line, bundle_dir):
    return line.make(do="compile", model=str(bundle_dir / "stem.onnx"))


@pytest.mark.slow
def test_answers_find_those_who_asked_in_whatever_order_they_ask(line, bundle_dir):
    names = ("stem", "head", "stem", "head")
    numbers = [line.send(do="compile", model=str(bundle_dir / f"{name}.onnx"), key=key) for key, name in enumerate(names)]
    found = [line.answer(number)["outputs"] for number in reversed(numbers)][::-1]
    assert found[0] == found[2] != found[1] == found[3]


@pytest.mark.slow
def test_several_threads_get_their_own_answers(line, bundle_dir):
    found = {}

    def ask(key):
        number = line.send(do="compile", model=str(bundle_dir / f"{key}.onnx"), key=key)
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


@pytest.mark.slow
def test_new_child_has_made_what_the_old_one_had(line, bundle_dir):
    compiled(line, bundle_dir)
    old = line.pid
    os.kill(old, signal.SIGKILL)
    key, found = compiled(line, bundle_dir)
    assert (key, found["inputs"]) == (1, [["x", [1, 3, 8, 8]]])
    assert line.pid != old


def test_what_was_dropped_is_not_made_again(line, bundle_dir, tmp_path):
    file = tmp_path / "stem.onnx"
    file.write_bytes((bundle_dir / "stem.onnx").read_bytes())
    key, _ = line.make(do="compile", model=str(file))
    file.unlink()
    line.drop(key)
    os.kill(line.pid, signal.SIGKILL)
    assert compiled(line, bundle_dir)[0] == key + 1


@pytest.mark.slow
def test_child_that_cannot_be_made_as_the_old_one_was_is_tried_anew_each_time(line, bundle_dir, tmp_path):
    file = tmp_path / "stem.onnx"
    file.write_bytes((bundle_dir / "stem.onnx").read_bytes())
    line.make(do="compile", model=str(file))
    kept = file.read_bytes()
    file.unlink()
    os.kill(line.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(StretchError, match=r"stem\.onnx"):
            compiled(line, bundle_dir)
    file.write_bytes(kept)
    assert compiled(line, bundle_dir)[1]["inputs"]


def test_whoever_waits_for_a_child_that_is_ended_hears_why(line, bundle_dir):
    compiled(line, bundle_dir)
    os.kill(line.pid, signal.SIGSTOP)
    number = line.send(do="compile", model=str(bundle_dir / "stem.onnx"), key=9)
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
