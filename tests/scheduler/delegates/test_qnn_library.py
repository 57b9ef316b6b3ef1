import pytest

from scheduler.delegates.qnn_library import INSTALL
from tests.scheduler.delegates import qdq

LOAD = """
from predictors.errors import MissingBackendError
from scheduler.delegates import DspDelegate
from scheduler.delegates.qnn_library import load_library
print("unavailable:", DspDelegate.unavailable())
try:
    load_library()
    print("loaded")
except MissingBackendError as error:
    print(f"{error.exit_code}: {error.message} | {error.hint}")
"""


@pytest.mark.slow
@pytest.mark.qnn
@pytest.mark.parametrize("library", ["libQnnHtp.so", "libonnxruntime_providers_qnn.so"])
def test_removed_library_is_a_missing_backend_with_the_install_line(tmp_path, library):
    path = qdq.broken_package(tmp_path, {library: None})
    unavailable, error = qdq.python(LOAD, path=path).stdout.splitlines()
    assert library in unavailable
    assert error.startswith("5: the `dsp` delegate cannot run")
    assert library in error
    assert error.endswith(INSTALL)


def test_missing_package_is_a_missing_backend_with_the_install_line():
    unavailable, error = qdq.python("import sys\nsys.modules['onnxruntime_qnn'] = None\n" + LOAD).stdout.splitlines()
    assert unavailable == f"unavailable: onnxruntime-qnn is not installed ({INSTALL})"
    assert error == f"5: the `dsp` delegate cannot run: onnxruntime-qnn is not installed | {INSTALL}"
