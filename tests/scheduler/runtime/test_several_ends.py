"""A bundle of two inputs and two outputs, one of whose subgraphs reads and writes two tensors, against ONNX Runtime on the whole."""

from dataclasses import replace

import msgspec
import numpy as np
import onnxruntime
import pytest

from predictors.errors import UsageError
from scheduler.bundle.load import graph_problems, load_bundle
from scheduler.checks.verify import judge
from scheduler.cores import available_cores
from scheduler.measure.benchmark import Effort, benchmark
from scheduler.runtime.session import Session

#: A core that this process may use.
CORE = available_cores()[0]


@pytest.fixture
def path(bundles, tmp_path):
    return bundles.several_ends(tmp_path / "b")


def numbers(seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((1, 3, 8, 8)).astype(np.float32) for name in ("left", "right")}


def whole(path, x):
    session = onnxruntime.InferenceSession(str(path / "model.onnx"))
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, x), strict=True))


def same(got, expected):
    return got.keys() == expected.keys() and all(np.allclose(got[name], expected[name], atol=1e-5) for name in expected)


@pytest.mark.parametrize("mapping", [None, {"gpu": "reference"}, {"cpu": f"cpu{CORE}", "gpu": f"cpu{CORE}"}])
def test_outputs_by_name_are_those_of_the_whole_model(path, mapping):
    with Session(path, mapping) as session:
        for seed in range(3):
            assert same(session.run(numbers(seed)), whole(path, numbers(seed)))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((1, 3, 8, 8), np.float32), "has 2 inputs, one array was given"),
        ({"left": np.zeros((1, 3, 8, 8), np.float32)}, "the input `right` is missing"),
        (numbers() | {"middle": np.zeros(1, np.float32)}, "no input `middle`"),
        (numbers() | {"right": np.zeros((1, 3, 8, 9), np.float32)}, "the input `right` has shape"),
        (numbers() | {"left": np.full((1, 3, 8, 8), np.nan, np.float32)}, "the input `left` contains NaN"),
    ],
)
def test_wrong_inputs_are_usage_errors_that_name_the_input(path, x, message):
    with Session(path) as session:
        for call in (session.run, session.submit, session.tensors):
            with pytest.raises(UsageError, match=message):
                call(x)
        assert same(session(numbers()), whole(path, numbers()))


def test_file_of_several_tensors_may_have_them_in_another_order(bundles, path):
    import onnx

    model = onnx.load(path / "m.cpu.onnx")
    for values in (model.graph.input, model.graph.output):
        turned = list(values)[::-1]
        del values[:]
        values.extend(turned)
    onnx.save(model, path / "m.cpu.onnx")
    entry = msgspec.to_builtins(bundles.file_entry(path / "m.cpu.onnx"))
    bundles.edit(path, lambda m: m["files"].update({"m.cpu.onnx": entry}))
    with Session(path) as session:
        assert same(session(numbers()), whole(path, numbers()))


def test_results_are_called_as_the_manifest_says_one_at_a_time_and_in_flight(path):
    bundle = load_bundle(path)
    manifest = msgspec.structs.replace(bundle.manifest, results=("total", "rest"))
    named = replace(bundle, manifest=manifest)
    expected = whole(path, numbers())
    with Session(named) as session:
        for got in (session.run(numbers()), session.submit(numbers()).result(60)):
            assert list(got) == ["total", "rest"]
            for name, result in zip(bundle.manifest.outputs, got, strict=True):
                np.testing.assert_allclose(got[result], expected[name], atol=1e-5)
        judge(session, numbers())
        benchmark(session, numbers(), Effort(1, warmup=0))


@pytest.mark.parametrize("results", [("total",), ("total", "total"), ("total", "")])
def test_results_without_a_name_of_their_own_each_are_refused(path, results):
    manifest = load_bundle(path).manifest
    assert any("outputs are called" in problem for problem in graph_problems(msgspec.structs.replace(manifest, results=results)))
