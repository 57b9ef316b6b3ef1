import threading
from pathlib import Path

import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.opencl.fallback import FallbackCompiled, FallbackInvocation
from tests.scheduler.delegates.opencl import networks


@pytest.fixture
def refused(tmp_path):
    return networks.save(tmp_path / "m.onnx", [("Cos", ["x"], "y", {})], {"x": (1, 5)}, ["y"], {})


def test_refused_subgraph_runs_on_the_cpu_with_a_warning_that_says_why(refused):
    with pytest.warns(UserWarning, match="runs on the CPU: node `y` is a Cos"):
        compiled = OpenCLDelegate.create(()).compile(refused)
    x, y = networks.numbers(1, 5), np.zeros((1, 5), np.float32)
    call = compiled.bind([x], [y])
    call.enqueue()
    call.wait()
    assert np.allclose(y, np.cos(x), atol=1e-6)
    began, ended = call.times()
    assert began < ended


def test_subgraph_whose_kernel_is_not_compiled_runs_on_the_cpu_with_a_warning_that_names_the_log(refused, tmp_path, added_template):
    (tmp_path / "broken.cl").write_text("#error it does not compile")
    path = networks.save(tmp_path / "c.onnx", [("Cos", ["x"], "y", {})], {"x": (1, 5, 2, 2)}, ["y"], {})
    added_template("Cos", networks.cosine("broken"), tmp_path)
    with pytest.warns(UserWarning, match="does not compile the kernel `broken`; its log is in ") as caught:
        compiled = OpenCLDelegate.create(()).compile(path)
    Path(str(caught[0].message).rsplit(" ", 1)[-1]).unlink()
    x, y = networks.numbers(1, 5, 2, 2), np.zeros((1, 5, 2, 2), np.float32)
    compiled.run([x], [y])
    assert np.allclose(y, np.cos(x), atol=1e-6)


def test_without_fallback_the_subgraph_is_refused(refused):
    with pytest.raises(StretchError, match="Cos"):
        OpenCLDelegate().compile(refused)


def test_failure_on_the_thread_reaches_the_caller():
    class Broken:
        def run(self):
            raise ValueError("broken")

    call = FallbackInvocation(Broken(), ())
    call.enqueue()
    with pytest.raises(ValueError, match="broken"):
        call.wait()
    call.wait()


def test_thread_is_created_once(refused):
    call = FallbackCompiled(refused, (), "why").bind([networks.numbers(1, 5)], [np.zeros((1, 5), np.float32)])
    before = threading.active_count()
    for _ in range(3):
        call.run()
    assert threading.active_count() == before
