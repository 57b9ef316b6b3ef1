"""`stretch explain`: where each operator runs and why."""

import onnx


def test_every_operator_has_a_reason_a_convolution_its_time_and_its_activation_is_merged_into_it(succeeds, bundle_dir):
    data, _ = succeeds("explain", bundle_dir, "--json")
    for sub in data["subgraphs"]:
        names = {node.name for node in onnx.load(bundle_dir / f"{sub['name']}.onnx").graph.node}
        ops = [op for op in data["ops"] if op["subgraph"] == sub["name"]]
        assert names <= {op["name"] for op in ops}
        assert all(op["reason"] for op in ops)
        assert all({"name", "subgraph", "processor", "delegate", "reason", "ms"} <= set(op) for op in ops)
    ops = {op["name"]: op for op in data["ops"]}
    assert ops["stem/conv"]["ms"] >= 0
    assert ops["stem/conv"]["source"] == "measured"
    assert ops["stem/relu"]["ms"] is None
    assert "merged into `stem/conv`" in ops["stem/relu"]["reason"]


def test_device_gives_predicted_times_of_its_kernels(succeeds, bundle_dir):
    data, err = succeeds("explain", bundle_dir, "--device", "pixel6", "--json")
    assert data["device"] == "pixel6"
    ops = {op["subgraph"] + "/" + op["op"]: op for op in data["ops"]}
    assert ops["s1.gpu/conv"]["source"] == "predicted"
    assert ops["s1.gpu/conv"]["ms"] > 0
    assert "merged into" in ops["s1.gpu/relu"]["reason"]
    assert "not fitted to measurements" in err
    assert all(sub["ms"] > 0 for sub in data["subgraphs"])


def relu_file(folder, opset=18):
    """A file of two operators as anybody writes them."""
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, 4)) for name in ("x", "y")]
    chain = [onnx.helper.make_node("Relu", ["x"], ["r"], "relu"), onnx.helper.make_node("Softmax", ["r"], ["y"], "softmax", axis=1)]
    graph = onnx.helper.make_graph(chain, "foreign", ends[:1], ends[1:])
    path = folder / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8), str(path))
    return path


def test_people_read_counts_and_a_line_per_operator(succeeds, tmp_path):
    out, _ = succeeds("explain", relu_file(tmp_path), "--runtime", "onnxruntime", "--device", "cpu")
    assert "takes 2 of 2 operators" in out
    assert "all operators are supported" in out
    assert any(line.startswith("softmax") for line in out.splitlines())
