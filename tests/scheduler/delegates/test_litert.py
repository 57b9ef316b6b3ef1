import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

from predictors.errors import MissingBackendError, StretchError
from predictors.install import install_line
from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import random_input
from scheduler.cores import available_cores
from scheduler.delegates.litert import INSTALL, LiteRtDelegate
from scheduler.runtime.sequential import Sequential, max_error
from scheduler.runtime.session import Session
from stretch.export.tflite.bundle import export_tflite
from stretch.quantize.images import synthetic_images
from tests.scheduler.bundles import two_branches

pytest.importorskip("ai_edge_litert")

EVERYWHERE = {"cpu": "litert", "dsp": "litert"}


def exported(folder, precision=None, batch=1):
    floats = load_bundle(two_branches(folder / "floats", batch, ("cpu", "dsp")))
    images = synthetic_images(floats.manifest.model.input_shape, 8)
    export_tflite(floats, folder / "bundle", images, "synthetic", precision=precision)
    return load_bundle(folder / "bundle", check_hashes=True)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("fp32"))


@pytest.fixture(scope="module")
def int8(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("int8"), {"dsp": "int8"})


def whole(bundle, x):
    return Sequential(bundle.file(bundle.manifest.whole)).run(x)


@pytest.mark.slow
def test_branches_run_on_interpreters_of_their_own_and_give_the_models_numbers(bundle):
    x = random_input(bundle)
    with Session(bundle, EVERYWHERE) as session:
        got = session(x)
        assert {place.queue for place in session.placements.values()} == {"litert:cpu", "litert:dsp"}
        assert {span.name for span in session.trace.spans} >= {"s1.cpu", "s1.dsp", "s2.cpu", "s2.dsp"}
    assert max_error(got, whole(bundle, x)) < 1e-5


def test_conversions_at_the_border_are_spans_within_their_subgraph(bundle):
    with Session(bundle, EVERYWHERE) as session:
        session(random_input(bundle))
        spans = {span.name: span for span in session.trace.spans}
        for name in session.plan.subgraphs:
            into, out = spans[f"{name} to NHWC"], spans[f"{name} to NCHW"]
            assert into.kind == out.kind == "conversion"
            assert spans[name].start_ns <= into.start_ns <= into.end_ns <= out.start_ns <= out.end_ns <= spans[name].end_ns
        session.submit(random_input(bundle)).result(60)
        assert {span.name for span in session.submitted_traces[0].spans} == set(spans)


def test_several_inferences_in_flight_do_not_mix(bundle):
    inputs = [random_input(bundle, seed) for seed in range(6)]
    with Session(bundle, EVERYWHERE) as session:
        results = [future.result() for future in [session.submit(x) for x in inputs]]
    for x, got in zip(inputs, results, strict=True):
        assert max_error(got, whole(bundle, x)) < 1e-5


@pytest.mark.slow
def test_batches_of_several_images_are_turned_one_by_one(tmp_path):
    bundle = exported(tmp_path, batch=3)
    x = random_input(bundle)
    with Session(bundle, EVERYWHERE) as session:
        assert max_error(session(x), whole(bundle, x)) < 1e-5


@pytest.mark.slow
def test_one_processor_on_litert_and_the_other_on_onnx_runtime_meet(int8):
    x = random_input(int8)
    with Session(int8, {"cpu": f"cpu{available_cores()[0]}", "dsp": "litert"}) as session:
        assert max_error(session(x), whole(int8, x)) < 0.05


def test_runs_while_other_threads_do(bundle):
    """Two interpreters at once, from two threads."""
    delegate = LiteRtDelegate()
    inputs = {name: random_like(bundle, name) for name in ("s1.cpu", "s1.dsp")}
    alone = {name: once(delegate.compile_from(bundle, name), x) for name, x in inputs.items()}
    compiled = {name: delegate.compile_from(bundle, name) for name in inputs}
    different = []

    def work(name):
        results = [once(compiled[name], inputs[name]) for _ in range(50)]
        different.extend(name for result in results if not np.array_equal(result, alone[name]))

    threads = [threading.Thread(target=work, args=(name,)) for name in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert different == []


def random_like(bundle, name):
    tensors = {tensor.name: tensor for tensor in bundle.manifest.tensors}
    return np.random.default_rng(1).standard_normal(tensors[bundle.subgraph(name).input].shape).astype(np.float32)


def once(compiled, x):
    (shape,) = compiled.outputs.values()
    y = np.full(shape, np.nan, np.float32)
    compiled.run([x], [y])
    return y


def test_bundle_without_a_tflite_file_says_how_to_write_one(tmp_path):
    floats = load_bundle(two_branches(tmp_path / "floats", 1, ("cpu", "dsp")))
    with pytest.raises(StretchError, match="has no TFLite file") as error:
        Session(floats, {"cpu": "litert"})
    assert "--format tflite" in error.value.hint


def test_file_that_was_changed_is_refused_though_its_size_is_the_same(bundle, tmp_path):
    copy = load_bundle(shutil.copytree(bundle.path, tmp_path / "copy"))
    file = copy.file(copy.manifest.tflite)
    content = bytearray(file.read_bytes())
    content[-40] ^= 1
    file.write_bytes(content)
    with pytest.raises(StretchError, match="was changed after the bundle was written"):
        LiteRtDelegate().compile_from(copy, "stem")


def test_file_with_several_signatures_is_not_one_subgraph(bundle):
    with pytest.raises(StretchError, match="has 8 signatures, one was expected"):
        LiteRtDelegate().compile(bundle.file(bundle.manifest.tflite))


def test_explanation_names_every_operator_and_what_the_border_costs(bundle):
    places = LiteRtDelegate().places_from(bundle, "s1.cpu")
    assert [place.op for place in places] == ["convert", "CONV_2D", "all operators", "convert"]
    assert all(place.ms is not None for place in places if place.op != "CONV_2D")
    assert "XNNPACK" in places[1].reason


def test_buffers_of_another_shape_are_refused(bundle):
    compiled = LiteRtDelegate().compile_from(bundle, "stem")
    with pytest.raises(StretchError, match="has shape"):
        compiled.bind([np.zeros((1, 8, 8, 3), np.float32)], [np.zeros((1, 6, 8, 8), np.float32)])


def python(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False)


RUN = """
import sys
{before}
from pathlib import Path
from scheduler.runtime.session import Session
from scheduler.checks.verify import random_input
with Session(Path(sys.argv[1]), {{"cpu": "litert", "dsp": "litert"}}) as session:
    print(session(random_input(session.bundle)).shape)
"""


@pytest.mark.slow
def test_nothing_is_printed_by_native_code(bundle):
    result = python(RUN.format(before=""), bundle.path)
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, "(1, 5)", "")


def test_missing_package_is_told_with_the_install_line(bundle, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    monkeypatch.setitem(sys.modules, "tflite_runtime", None)
    assert INSTALL in LiteRtDelegate.unavailable()
    with pytest.raises(MissingBackendError, match=re.escape(install_line("litert"))) as error:
        Session(bundle, EVERYWHERE)
    assert error.value.exit_code == 5
    with pytest.raises(MissingBackendError):
        LiteRtDelegate().compile_from(bundle, "stem")


@pytest.mark.slow
def test_predecessor_of_the_package_is_used_where_it_is_what_there_is(bundle, tmp_path):
    """A package with the old name and the same interface, as boards have it."""
    assert importlib.util.find_spec("tflite_runtime") is None
    folder = tmp_path / "tflite_runtime"
    folder.mkdir()
    (folder / "__init__.py").write_text("__version__ = '2.14.0'\n")
    (folder / "interpreter.py").write_text(
        "import sys\ndel sys.modules['ai_edge_litert']\nfrom ai_edge_litert.interpreter import Interpreter\n"
    )
    before = f"sys.path.insert(0, {str(tmp_path)!r}); sys.modules['ai_edge_litert'] = None"
    result = python(RUN.format(before=before), bundle.path)
    assert (result.returncode, result.stdout.strip()) == (0, "(1, 5)"), result.stderr


def test_cores_are_threads_and_one_core_needs_no_helper(bundle):
    def threads():
        return set(os.listdir("/proc/self/task"))

    if not os.path.isdir("/proc/self/task"):
        pytest.skip("this system does not list threads")
    x = random_like(bundle, "s2.cpu")
    before = threads()
    one = LiteRtDelegate.create((0,)).compile_from(bundle, "s2.cpu")
    expected = once(one, x)
    # threads of other tests may end meanwhile
    assert threads() <= before
    two = LiteRtDelegate.create((0, 1)).compile_from(bundle, "s2.cpu")
    assert np.allclose(once(two, x), expected, atol=1e-6)
    assert len(threads() - before) == 1
    del one, two
    assert threads() <= before
