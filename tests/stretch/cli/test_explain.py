"""`stretch explain`: where each operator runs and why."""

import onnx
import pytest


def test_every_operator_of_every_subgraph_is_told_with_a_reason(stretch, bundle_dir):
    code, data, _ = stretch("explain", bundle_dir, "--json")
    assert code == 0
    for sub in data["subgraphs"]:
        names = {node.name for node in onnx.load(bundle_dir / f"{sub['name']}.onnx").graph.node}
        ops = [op for op in data["ops"] if op["subgraph"] == sub["name"]]
        assert names <= {op["name"] for op in ops}
        assert all(op["reason"] for op in ops)
        assert all({"name", "subgraph", "processor", "delegate", "reason", "ms"} <= set(op) for op in ops)


def test_convolution_has_a_time_and_its_activation_is_merged_into_it(stretch, bundle_dir):
    _, data, _ = stretch("explain", bundle_dir, "--json")
    ops = {op["name"]: op for op in data["ops"]}
    assert ops["stem/conv"]["ms"] >= 0
    assert ops["stem/conv"]["source"] == "measured"
    assert ops["stem/relu"]["ms"] is None
    assert "merged into `stem/conv`" in ops["stem/relu"]["reason"]


def test_meeting_points_are_listed_with_how_they_join(stretch, bundle_dir):
    _, data, _ = stretch("explain", bundle_dir, "--json")
    joins = {op["name"]: op["op"] for op in data["ops"] if op["op"].startswith("join")}
    assert joins == {"s1.join": "join concat", "s2.join": "join sum"}


def test_mapping_changes_delegate_and_reason(stretch, bundle_dir):
    _, data, _ = stretch("explain", bundle_dir, "--map", "gpu=reference", "--json")
    assert {op["delegate"] for op in data["ops"] if op["subgraph"] == "s1.gpu"} == {"reference"}
    assert data["processors"]["gpu"]["reason"] == "mapped to reference"
    assert data["processors"]["cpu"]["delegate"] == "cpu"


def test_people_read_a_line_per_operator(stretch, bundle_dir):
    code, out, _ = stretch("explain", bundle_dir)
    assert code == 0
    assert any(line.startswith("s1.gpu/conv") for line in out.splitlines())
    assert "no delegate here drives a gpu" in out


@pytest.mark.parametrize(("words", "code"), [(["--map", "gpu=cqu1"], 3), (["--map", "npu=cpu0"], 2)])
def test_bad_mapping_has_its_exit_code(stretch, bundle_dir, words, code):
    assert stretch("explain", bundle_dir, *words)[0] == code


def test_device_gives_predicted_times_of_its_kernels(stretch, bundle_dir):
    code, data, err = stretch("explain", bundle_dir, "--device", "pixel6", "--json")
    assert code == 0
    assert data["device"] == "pixel6"
    ops = {op["subgraph"] + "/" + op["op"]: op for op in data["ops"]}
    assert ops["s1.gpu/conv"]["source"] == "predicted"
    assert ops["s1.gpu/conv"]["ms"] > 0
    assert "merged into" in ops["s1.gpu/relu"]["reason"]
    assert "not fitted to measurements" in err
    assert all(sub["ms"] > 0 for sub in data["subgraphs"])


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [(["--device", "pixel7"], 3, "did you mean `pixel6`?"), (["--device", "pixel6", "--map", "gpu=cpu0"], 2, "give one of the two")],
)
def test_bad_device_has_its_exit_code(stretch, bundle_dir, words, code, told):
    got, _, err = stretch("explain", bundle_dir, *words)
    assert got == code
    assert told in err


def test_processor_the_device_lacks_is_named(stretch, bundles, tmp_path):
    path = bundles.two_branches(tmp_path / "b", processors=("cpu", "dsp"))
    code, _, err = stretch("explain", path, "--device", "pixel6")
    assert code == 3
    assert "dsp" in err
