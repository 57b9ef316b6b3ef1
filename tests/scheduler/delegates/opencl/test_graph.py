import pytest

from predictors.errors import StretchError
from scheduler.delegates.opencl.graph import read_graph
from tests.scheduler.delegates.opencl import networks


def test_readers_and_writers_are_found(tmp_path):
    graph = read_graph(networks.classifier(tmp_path / "m.onnx"))
    assert [node.name for node in graph.readers()["p"]] == ["a", "b"]
    assert graph.only_reader("p") is None
    assert graph.only_reader("y") is None
    assert graph.only_reader("c").name == "g"
    assert graph.writers()["c"].op == "Concat"


def test_old_opset_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(networks, "OPSET", 12)
    path = networks.save(tmp_path / "m.onnx", [("Relu", ["x"], "y", {})], {"x": (1, 2)}, ["y"], {})
    with pytest.raises(StretchError, match="opset 12"):
        read_graph(path)


def test_operator_of_another_domain_is_refused(tmp_path):
    import onnx

    path = networks.save(tmp_path / "m.onnx", [("Relu", ["x"], "y", {})], {"x": (1, 2)}, ["y"], {})
    model = onnx.load(str(path))
    model.graph.node[0].domain = "com.example"
    onnx.save(model, str(path))
    with pytest.raises(StretchError, match="does not run"):
        read_graph(path)
