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


def test_nothing_is_asked_of_what_was_closed(line):
    line.end()
    with pytest.raises(GoneError, match="closed"):
        line.make(do="compile", model="x.onnx")
