import os
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.checks.verify import random_input
from scheduler.delegates import delegates
from scheduler.delegates.base import UnableError
from scheduler.delegates.litert import NAME, LiteRtGpuDelegate
from scheduler.delegates.reference import ReferenceDelegate
from scheduler.runtime.sequential import Sequential, max_error
from scheduler.runtime.session import Session
from tests.effort import examples
from tests.scheduler.delegates import graphs
from tests.scheduler.delegates.test_litert import exported

pytest.importorskip("ai_edge_litert.compiled_model")


class OnCpu(LiteRtGpuDelegate):
    """The same code on LiteRT's CPU, which every machine has."""

    accelerator = "CPU"
    devices = "/"


@pytest.mark.torch
@settings(max_examples=examples(4), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=st.sampled_from(["conv", "linear", "max_pool", "add"]).flatmap(graphs.graphs))
def test_compiled_model_agrees_with_the_reference(tmp_path, case):
    graph, weights, x = case
    graphs.save_both(graph, weights, tmp_path)
    expected = graphs.run(ReferenceDelegate(), tmp_path / "op.onnx", graph, x)
    try:
        got = graphs.run(OnCpu.create(()), tmp_path / "op.tflite", graph, x)
    except UnableError:  # such as a pool of one pixel, which LiteRT leaves to its reference kernels
        reject()
    assert np.allclose(got, expected, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.torch
def test_branches_run_in_a_process_beside_those_of_onnx_runtime(tmp_path, monkeypatch):
    code = "from scheduler.delegates.litert import LiteRtGpuDelegate\nLiteRtGpuDelegate.accelerator = 'CPU'\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(delegates, "_items", {**delegates._items, NAME: OnCpu})
    bundle = exported(tmp_path)
    x = random_input(bundle)
    with Session(bundle, {"dsp": NAME}) as session:
        assert session.placements["dsp"].delegate == NAME
        got = [session(x), session.submit(x).result(60)]
    whole = Sequential(bundle.file(bundle.manifest.whole)).run(x)
    assert max(max_error(one, whole) for one in got) < 1e-5


def test_where_there_is_no_gpu_it_says_so_and_refuses_what_it_cannot_compile(tmp_path):
    if os.path.exists("/dev/dri"):
        pytest.skip("this machine has a GPU")
    if sys.platform == "linux":
        assert "no GPU" in LiteRtGpuDelegate.unavailable()
    (tmp_path / "op.tflite").write_bytes(b"no model")
    with pytest.raises(StretchError, match="cannot compile"):
        LiteRtGpuDelegate.create(()).compile(tmp_path / "op.tflite")
