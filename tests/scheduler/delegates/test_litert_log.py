import os

import pytest

from scheduler.delegates.litert import quiet


def test_notes_of_native_code_are_held_back_and_the_rest_is_passed_on(capfd):
    with quiet():
        os.write(2, b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\nERROR: a tensor is missing\n")
    assert capfd.readouterr().err == "ERROR: a tensor is missing\n"


def test_standard_error_is_back_after_an_error(capfd):
    with pytest.raises(RuntimeError), quiet():
        raise RuntimeError
    os.write(2, b"INFO: later\n")
    assert capfd.readouterr().err == "INFO: later\n"
