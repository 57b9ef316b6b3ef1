import os
import sys

import numpy as np
import onnx
import pytest
from onnx import helper

from predictors.errors import MissingBackendError, StretchError
from predictors.install import install_line
from scheduler.delegates.openvino import OpenVinoDelegate
from scheduler.runtime.session import Session
from tests import onnx_runtime

if problem := OpenVinoDelegate.unavailable():
    pytest.skip(problem, allow_module_level=True)

X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


def test_writes_straight_into_a_slice_of_a_larger_buffer_and_nowhere_else(bundle_dir):
    joined = np.full((1, 20, 8, 8), 5, np.float32)
    OpenVinoDelegate().compile(bundle_dir / "stem.onnx").run([X], [joined[:, 7:13]])
    expected = onnx_runtime.output(bundle_dir / "stem.onnx", X)
    assert np.allclose(joined[:, 7:13], expected, atol=1e-6)
    assert (joined[:, :7] == 5).all()
    assert (joined[:, 13:] == 5).all()


def test_bindings_of_one_subgraph_do_not_share_buffers(bundle_dir):
    compiled = OpenVinoDelegate().compile(bundle_dir / "stem.onnx")
    outputs = [np.zeros((1, 6, 8, 8), np.float32) for _ in range(2)]
    calls = [compiled.bind([X * scale], [output]) for scale, output in zip((1, 2), outputs, strict=True)]
    for call in calls:
        call.run()
    assert not np.array_equal(*outputs)
    assert np.array_equal(outputs[0], outputs[0].clip(0))


def test_session_runs_a_branch_on_it_beside_onnx_runtime(bundle_dir):
    with Session(bundle_dir, {"gpu": f"openvino{sorted(os.sched_getaffinity(0))[-1]}"}) as session:
        assert {p.delegate for p in session.placements.values()} == {"cpu", "openvino"}
        expected = onnx_runtime.output(bundle_dir / "model.onnx", X)
        assert np.allclose(session(X), expected, atol=1e-5)
        assert np.allclose(session.submit(X).result(60), expected, atol=1e-5)


@pytest.mark.torch
def test_bands_and_paths_on_it_beside_onnx_runtime_are_the_original(tmp_path):
    pytest.importorskip("torch")
    from tests.stretch.exact_bundles import images, made, near, original

    x = images(1)[0]
    with Session(made(tmp_path / "exact"), {"gpu": f"openvino{sorted(os.sched_getaffinity(0))[-1]}"}) as session:
        assert {p.delegate for p in session.placements.values()} == {"cpu", "openvino"}
        assert near(session(x), original(x))
        assert near(session.submit(x).result(60), original(x))


def test_model_it_cannot_load_is_one_sentence_with_the_file(tmp_path):
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("NoSuchOp", ["x"], ["y"])], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(tmp_path / "m.onnx"))
    with pytest.raises(StretchError, match="OpenVINO cannot compile") as error:
        OpenVinoDelegate().compile(tmp_path / "m.onnx")
    assert "\n" not in error.value.message


def test_places_account_for_every_operator(bundle_dir):
    places = OpenVinoDelegate().places(bundle_dir / "model.onnx")
    nodes = {n.name or f"{n.op_type}_{i}" for i, n in enumerate(onnx.load(bundle_dir / "model.onnx").graph.node)}
    assert nodes <= {place.name for place in places}
    assert any(place.ms is not None for place in places)


def test_missing_package_is_told_with_the_install_line(bundle_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingBackendError, match="needs OpenVINO, which is not installed") as error:
        OpenVinoDelegate().compile(bundle_dir / "stem.onnx")
    assert (error.value.exit_code, error.value.hint) == (5, install_line("openvino"))
