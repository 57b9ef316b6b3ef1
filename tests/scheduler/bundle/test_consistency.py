import msgspec
import pytest

from scheduler.bundle.consistency import graph_problems
from scheduler.bundle.manifest import Manifest


@pytest.fixture
def manifest(bundle_dir):
    """The two-branch bundle's manifest as plain data."""
    return msgspec.json.decode((bundle_dir / "bundle.json").read_bytes())


def problems(data):
    return list(graph_problems(msgspec.convert(data, Manifest, strict=False)))


def tensor(data, name):
    return next(t for t in data["tensors"] if t["name"] == name)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: m.update(subgraphs=[]), "no subgraph"),
        (lambda m: m["tensors"].append(m["tensors"][0]), "tensor `x` is there twice"),
        (lambda m: m["subgraphs"][1].update(name="stem"), "`stem` is there twice"),
        (lambda m: m["subgraphs"][0].update(name="input"), "may be called `input`"),
        (lambda m: m["subgraphs"][0].update(outputs=["lost"]), "`lost`, which is not described"),
        (lambda m: m.update(inputs=["lost"]), "`lost` is not described"),
        (lambda m: m["subgraphs"][0].update(outputs=["t1"]), "written by stem, s1.join"),
        (lambda m: tensor(m, "t0").update(producer="head"), "states the producer `head`"),
        (lambda m: tensor(m, "t0").update(consumers=["s1.cpu"]), "states the consumers s1.cpu"),
        (lambda m: tensor(m, "x").update(producer="stem"), "is written by input"),
        (lambda m: m["subgraphs"].reverse(), "not in topological order"),
        (lambda m: m["joins"].reverse(), "not in topological order"),
        (lambda m: tensor(m, "t1").update(shape=[1, 9, 8, 8]), "channels 4 + 6 do not give"),
        (lambda m: tensor(m, "s1.cpu.y").update(shape=[1, 4, 8, 9]), "do not give"),
        (lambda m: tensor(m, "s1.cpu.y").update(shape=[]), "empty or too large"),
        (lambda m: tensor(m, "s1.cpu.y").update(shape=[1, 0, 8, 8]), "empty or too large"),
        (lambda m: tensor(m, "s1.cpu.y").update(shape=[1 << 20, 1 << 20]), "empty or too large"),
        (lambda m: tensor(m, "s2.cpu.y").update(shape=[1, 7, 8, 8]), "adds tensors of different shapes"),
        (lambda m: tensor(m, "s1.cpu.y").update(dtype="int8"), "differ in type or layout"),
        (lambda m: m["joins"][0].update(kind="glue"), "join `s1.join` meets by `glue`, known are concat, rows, sum"),
        # A join of designs that is none of bundles: its convolutions belong to the branches.
        (lambda m: m["joins"][0].update(kind="project"), "meets by `project`, known are concat, rows, sum"),
        (lambda m: m["joins"][0].update(inputs=["s1.cpu.y"]), "two or more different tensors"),
        (lambda m: m["joins"][0].update(inputs=["s1.cpu.y", "s1.cpu.y"]), "two or more different tensors"),
        (lambda m: m["model"].update(input_shape=[1, 3, 9, 9]), "the model's input has shape"),
        (lambda m: m["model"].update(output_shape=[1, 6]), "the model's output has shape"),
        (lambda m: tensor(m, "t0").update(layout="NC"), "layout NC and 4 axes"),
        (lambda m: m["subgraphs"][1].update(rows={"t0": [3, 9]}), "`s1.cpu` reads rows 3 to 9 of `t0`, which has 8"),
        (lambda m: m["subgraphs"][1].update(rows={"t0": [3, 3]}), "`s1.cpu` reads rows 3 to 3 of `t0`"),
        (lambda m: m["subgraphs"][1].update(rows={"x": [0, 3]}), "`s1.cpu` states rows of `x`, which it does not read"),
        (lambda m: m["subgraphs"][1].update(rows={"lost": [0, 3]}), "states rows of `lost`, which it does not read"),
        (lambda m: (tensor(m, "t0").update(layout="PHWC4"), m["subgraphs"][1].update(rows={"t0": [0, 3]})), "of layout PHWC4 and 4 axes"),
        (lambda m: m.update(inputs=[]), "the model reads no tensor"),
        (lambda m: m.update(outputs=[]), "the model writes no tensor"),
        (lambda m: m.update(inputs=["x", "x"]), "the model reads the tensor `x` twice"),
        (lambda m: m["subgraphs"][1].update(inputs=[]), "`s1.cpu` reads no tensor"),
        (lambda m: m["subgraphs"][1].update(outputs=["s1.cpu.y"] * 2), "`s1.cpu` writes the tensor `s1.cpu.y` twice"),
        (lambda m: m["subgraphs"][1].update(inputs=["t0", "x"]), "tensor `x` states the consumers stem and is read by s1.cpu, stem"),
        (lambda m: m.update(outputs=["y", "t2"]), "tensor `t2` states the consumers head and is read by head, output"),
    ],
)
def test_each_inconsistency_is_told_in_words(manifest, change, told):
    change(manifest)
    assert any(told in problem for problem in problems(manifest)), problems(manifest)


def test_phwc4_tensors_cannot_be_put_side_by_side(manifest):
    for name in ("s1.cpu.y", "s1.gpu.y", "t1"):
        tensor(manifest, name)["layout"] = "PHWC4"
    assert any("cannot be put side by side" in problem for problem in problems(manifest))


def test_circle_is_found(manifest):
    manifest["subgraphs"][0]["inputs"] = ["t2"]
    assert any("not in topological order" in problem for problem in problems(manifest))


def test_several_ends_and_several_tensors_have_no_problem(bundles, tmp_path):
    data = msgspec.json.decode((bundles.several_ends(tmp_path / "b") / "bundle.json").read_bytes())
    assert problems(data) == []
    data["model"]["output_shape"] = [1, 3]
    assert problems(data) == ["the model's first output has shape [1, 3], its tensor `first` [1, 5]"]
