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


def test_branches_run_on_separate_interpreters_and_inferences_in_flight_do_not_mix(bundle):
    inputs = [random_input(bundle, seed) for seed in range(6)]
    with Session(bundle, EVERYWHERE) as session:
        results = [session(inputs[0]), *(future.result() for future in [session.submit(x) for x in inputs])]
        assert {place.queue for place in session.placements.values()} == {"litert:cpu", "litert:dsp"}
        assert {span.name for span in session.trace.spans} >= {"s1.cpu", "s1.dsp", "s2.cpu", "s2.dsp"}
    for x, got in zip([inputs[0], *inputs], results, strict=True):
        assert max_error(got, whole(bundle, x)) < 1e-5


@pytest.mark.slow
def test_batches_of_several_images_are_converted_image_by_image(tmp_path):
    bundle = exported(tmp_path, batch=3)
    x = random_input(bundle)
    with Session(bundle, EVERYWHERE) as session:
        assert max_error(session(x), whole(bundle, x)) < 1e-5


def test_wrong_buffer_shape_missing_file_and_changed_file_of_equal_size_are_refused(bundle, tmp_path):
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


def test_node_placements_name_every_operator_and_the_cost_of_conversions(bundle):
    places = LiteRtDelegate().node_placements_from(bundle, "s1.cpu")
    assert [place.op for place in places] == ["convert", "CONV_2D", "all operators", "convert"]
    assert all(place.ms is not None for place in places if place.op != "CONV_2D")
    assert "XNNPACK" in places[1].reason


@given(st.tuples(st.integers(1, 2), st.integers(1, 130), st.integers(1, 40), st.integers(1, 9)))
def test_conversion_to_nhwc_and_back_restores_the_array(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    channels_last = np.empty((shape[0], *shape[2:], shape[1]), np.float32)
    to_nhwc(x, channels_last)
    assert np.array_equal(channels_last, x.transpose(0, 2, 3, 1))
    restored = np.full(shape, np.nan, np.float32)
    to_nchw(channels_last, restored)
    assert np.array_equal(restored, x)


def test_stderr_filter_drops_notes_passes_other_lines_and_ends_after_an_exception(capfd):
    with contextlib.suppress(RuntimeError), filter_stderr(b"INFO:", b"VERBOSE:"):
        os.write(2, b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\nERROR: a tensor is missing\n")
        raise RuntimeError
    os.write(2, b"INFO: later\n")
    assert capfd.readouterr().err == "ERROR: a tensor is missing\nINFO: later\n"


class OnCpu(LiteRtGpuDelegate):
    """The GPU delegate's code on LiteRT's CPU accelerator, which every machine has."""

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
    except UnableError:  # for example a pool of one pixel, which LiteRT runs in its reference kernels
        reject()
    assert np.allclose(got, expected, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.torch
def test_branches_run_in_a_process_next_to_branches_of_onnx_runtime(tmp_path, monkeypatch):
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


def test_gpu_delegate_reports_a_missing_gpu_and_refuses_files_that_it_cannot_compile(tmp_path):
    if os.path.exists("/dev/dri"):
        pytest.skip("this machine has a GPU")
    if sys.platform == "linux":
        assert "no GPU" in LiteRtGpuDelegate.unavailable()
    (tmp_path / "op.tflite").write_bytes(b"no model")
    with pytest.raises(StretchError, match="cannot compile"):
        LiteRtGpuDelegate.create(()).compile(tmp_path / "op.tflite")
