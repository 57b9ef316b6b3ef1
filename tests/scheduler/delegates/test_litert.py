import contextlib
import os
import shutil
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import random_input
from scheduler.delegates import delegates
from scheduler.delegates.base import UnableError, filter_stderr
from scheduler.delegates.litert import NAME, LiteRtDelegate, LiteRtGpuDelegate, to_nchw, to_nhwc
from scheduler.delegates.reference import ReferenceDelegate
from scheduler.runtime.sequential import Sequential, max_error
from scheduler.runtime.session import Session
from tests.effort import examples
from tests.scheduler.bundles import two_branches
from tests.scheduler.delegates import graphs
from tests.scheduler.tools.runner import built

pytest.importorskip("ai_edge_litert.compiled_model")

EVERYWHERE = {"cpu": "litert", "dsp": "litert"}


def exported(folder, precision=None, batch=1):
    return built.exported(folder, lambda path: two_branches(path, batch, ("cpu", "dsp")), precision)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("fp32"))


def whole(bundle, x):
    return Sequential(bundle.file(bundle.manifest.whole)).run(x)


def test_branches_run_on_interpreters_of_their_own_and_several_inferences_in_flight_do_not_mix(bundle):
    inputs = [random_input(bundle, seed) for seed in range(6)]
    with Session(bundle, EVERYWHERE) as session:
        results = [session(inputs[0]), *(future.result() for future in [session.submit(x) for x in inputs])]
        assert {place.queue for place in session.placements.values()} == {"litert:cpu", "litert:dsp"}
        assert {span.name for span in session.trace.spans} >= {"s1.cpu", "s1.dsp", "s2.cpu", "s2.dsp"}
    for x, got in zip([inputs[0], *inputs], results, strict=True):
        assert max_error(got, whole(bundle, x)) < 1e-5


@pytest.mark.slow
def test_batches_of_several_images_are_turned_one_by_one(tmp_path):
    bundle = exported(tmp_path, batch=3)
    x = random_input(bundle)
    with Session(bundle, EVERYWHERE) as session:
        assert max_error(session(x), whole(bundle, x)) < 1e-5


def test_buffers_of_another_shape_no_file_and_one_that_was_changed_are_refused_though_its_size_is_the_same(bundle, tmp_path):
    copy = load_bundle(shutil.copytree(bundle.path, tmp_path / "copy"))
    file = copy.file(copy.manifest.tflite)
    content = bytearray(file.read_bytes())
    content[-40] ^= 1
    file.write_bytes(content)
    with pytest.raises(StretchError, match="was changed"):
        LiteRtDelegate().compile_from(copy, "stem")
    compiled = LiteRtDelegate().compile_from(bundle, "stem")
    with pytest.raises(StretchError, match="has shape"):
        compiled.bind([np.zeros((1, 8, 8, 3), np.float32)], [np.zeros((1, 6, 8, 8), np.float32)])
    floats = load_bundle(two_branches(tmp_path / "floats", 1, ("cpu", "dsp")))
    with pytest.raises(StretchError, match="TFLite file") as error:
        Session(floats, {"cpu": "litert"})
    assert "--format tflite" in error.value.hint


def test_explanation_names_every_operator_and_what_the_border_costs(bundle):
    places = LiteRtDelegate().node_placements_from(bundle, "s1.cpu")
    assert [place.op for place in places] == ["convert", "CONV_2D", "all operators", "convert"]
    assert all(place.ms is not None for place in places if place.op != "CONV_2D")
    assert "XNNPACK" in places[1].reason


@given(st.tuples(st.integers(1, 2), st.integers(1, 130), st.integers(1, 40), st.integers(1, 9)))
def test_channels_go_last_and_come_back(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    turned = np.empty((shape[0], *shape[2:], shape[1]), np.float32)
    to_nhwc(x, turned)
    assert np.array_equal(turned, x.transpose(0, 2, 3, 1))
    back = np.full(shape, np.nan, np.float32)
    to_nchw(turned, back)
    assert np.array_equal(back, x)


def test_notes_of_native_code_are_held_back_the_rest_is_passed_on_and_standard_error_is_back_after_an_error(capfd):
    with contextlib.suppress(RuntimeError), filter_stderr(b"INFO:", b"VERBOSE:"):
        os.write(2, b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\nERROR: a tensor is missing\n")
        raise RuntimeError
    os.write(2, b"INFO: later\n")
    assert capfd.readouterr().err == "ERROR: a tensor is missing\nINFO: later\n"


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
    assert max(max_error(one, whole(bundle, x)) for one in got) < 1e-5


def test_where_there_is_no_gpu_it_says_so_and_refuses_what_it_cannot_compile(tmp_path):
    if os.path.exists("/dev/dri"):
        pytest.skip("this machine has a GPU")
    if sys.platform == "linux":
        assert "no GPU" in LiteRtGpuDelegate.unavailable()
    (tmp_path / "op.tflite").write_bytes(b"no model")
    with pytest.raises(StretchError, match="cannot compile"):
        LiteRtGpuDelegate.create(()).compile(tmp_path / "op.tflite")
