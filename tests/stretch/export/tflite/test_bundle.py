"""A TFLite file of a bundle: its precisions, its joins, and how far it is from ONNX and from fp32."""

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from predictors.errors import InfeasibleError, MissingBackendError, StretchError
from scheduler.bundle.load import load_bundle
from scheduler.bundle.tflite_file import load_tflite
from scheduler.checks.verify import random_input
from scheduler.delegates.litert import LiteRtDelegate
from scheduler.runtime.session import Session
from stretch.export.tflite import bundle as module
from stretch.export.tflite.bundle import FILE, MARGIN_DB, MIN_COSINE, MIN_COSINE_ROUNDED, SignatureLosses, export_tflite
from stretch.quantize.images import synthetic_images
from stretch.quantize.replay import Loss, loss, replay, runner
from tests.scheduler.bundles import Builder, edit, file_entry, stating, two_branches

pytest.importorskip("ai_edge_litert")


IMAGES = synthetic_images((1, 3, 8, 8), 16)


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    return load_bundle(two_branches(tmp_path_factory.mktemp("floats") / "bundle", processors=("cpu", "dsp")))


@pytest.fixture(scope="module")
def made(floats, tmp_path_factory):
    """The bundle with int8 on the dsp and fp16 on the cpu, and a TFLite file."""
    out = tmp_path_factory.mktemp("made") / "bundle"
    export_tflite(floats, out, IMAGES, "synthetic", precision={"dsp": "int8", "cpu": "fp16"})
    return load_bundle(out, check_hashes=True)


def test_precisions_of_the_bundle_are_those_of_the_file(made):
    file = load_tflite(made.file(FILE))
    assert {s.name: s.precision for s in file.plan.subgraphs} == {s.name: s.precision for s in made.manifest.subgraphs}
    assert [code for _, code in file.operators("s1.dsp")] == ["QUANTIZE", "CONV_2D", "DEQUANTIZE"]
    assert [code for _, code in file.operators("s1.cpu")] == ["DEQUANTIZE", "CONV_2D"]


def not_requantised(content, name, factor):
    """A file whose int8 branch `name` hands its integers on as they are, to a reader that takes them in another scale."""
    from scheduler.formats.tflite import OPERATORS, OPTIONS, TFLITE, TYPES

    model = TFLITE.decode(content)
    graph = next(item for item in model["subgraphs"] if item["name"] == name)
    *_, last = graph["operators"]  # makes the integers real
    source = graph["tensors"][last["inputs"][0]]
    scale = {**source["quantization"], "scale": source["quantization"]["scale"] * np.float32(factor)}
    shape = source["shape"].astype(np.int32)
    model["buffers"].append({"data": np.frombuffer(shape.tobytes(), np.uint8)})
    sizes = {"name": "sizes", "shape": [len(shape)], "type": TYPES["int32"], "buffer": len(model["buffers"]) - 1}
    graph["tensors"] += [sizes, {**source, "quantization": scale}]
    kind = OPERATORS["RESHAPE"]
    model["operator_codes"].append({"deprecated_builtin_code": kind.number, "version": 1, "builtin_code": kind.number})
    passed_on = {
        "opcode_index": len(model["operator_codes"]) - 1,
        "inputs": [last["inputs"][0], len(graph["tensors"]) - 2],
        "outputs": [len(graph["tensors"]) - 1],
        "builtin_options_type": OPTIONS[kind.options],
        "builtin_options": {"new_shape": shape},
    }
    last["inputs"] = [len(graph["tensors"]) - 1]
    graph["operators"] = [*graph["operators"][:-1], passed_on, last]
    return bytes(TFLITE.encode(model))


def noise_at_joins(bundle, floats, x):
    """How far each joined tensor is from fp32 when the bundle runs through its signatures, by tensor."""
    expected = replay(floats.manifest, {s.name: runner(str(floats.file(s.file))) for s in floats.manifest.subgraphs}, x)
    with Session(bundle, {"cpu": "litert", "dsp": "litert"}) as session:
        tensors = session.tensors(x)
    return {j.output: distance(tensors[j.output], expected[j.output]) for j in bundle.manifest.joins}


def distance(got, expected):
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def test_int8_branch_meets_the_others_in_reals(made, floats):
    """Branches of other scales and precisions lie side by side: each must be re-quantised out of its own integers."""
    noise = noise_at_joins(made, floats, random_input(made))
    assert noise.keys() == {"t1", "t2"}
    assert max(noise.values()) < 0.02


@pytest.mark.representatives(1)
@pytest.mark.parametrize("step", ["s1.dsp", "s2.dsp"])
def test_branch_that_is_not_re_quantised_before_its_join_is_refused(floats, tmp_path, monkeypatch, step):
    """The cosine of such a branch is 1: its direction is right and its size wrong."""
    write = module.write_tflite
    monkeypatch.setattr(module, "write_tflite", lambda bundle, **options: not_requantised(write(bundle, **options), step, 1.3))
    with pytest.raises(InfeasibleError, match=f"signature `{step}` of the TFLite file has a cosine of 1.0") as error:
        export_tflite(floats, tmp_path / "out", IMAGES, "synthetic", precision={"dsp": "int8"})
    assert error.value.exit_code == 4
    assert not (tmp_path / "out").exists()


def test_operator_that_tflite_lacks_is_named_with_its_subgraph_and_leaves_nothing(tmp_path):
    bundle = Builder(tmp_path / "b")
    bundle.conv("stem", "stem", "cpu", "x", "t", 4)
    bundle.head("head", "head", "cpu", "t", "y", 3)
    path = bundle.write("y")
    model = onnx.load(path / "stem.onnx")
    pool = helper.make_node(
        "MaxPool", ["p"], ["t"], name="pool", kernel_shape=[2, 2], strides=[1, 1], pads=[1, 1, 1, 1], dilations=[2, 2], ceil_mode=0
    )
    window = {"kernel": (2, 2), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (2, 2), "ceil_mode": False}
    model.graph.node[-1].output[0] = "p"
    model.graph.node.append(stating("max_pool", pool, window))
    onnx.save(model, path / "stem.onnx")
    edit(path, lambda data: data["files"].update({"stem.onnx": msgspec.to_builtins(file_entry(path / "stem.onnx"))}))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StretchError, match=r"subgraph `stem`: operator `t` \(max_pool\) is dilated"):
        export_tflite(load_bundle(path), tmp_path / "out", IMAGES, "synthetic")
    assert sorted(tmp_path.iterdir()) == before


def test_missing_runtime_is_told_before_anything_is_written(floats, tmp_path, monkeypatch):
    monkeypatch.setattr(LiteRtDelegate, "unavailable", classmethod(lambda cls: "ai_edge_litert is not installed"))
    with pytest.raises(MissingBackendError, match="ai_edge_litert is not installed"):
        export_tflite(floats, tmp_path / "out", IMAGES, "synthetic")
    assert not list(tmp_path.iterdir())


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "join", "precision", "least"),
    [
        ("tiny_resnet", "project", None, 0.999999),
        pytest.param("tiny_regnet", "concat", {"dsp": "int8", "cpu": "fp16"}, 0.999, marks=pytest.mark.slow),
    ],
)
def test_signatures_run_concurrently_with_the_numbers_of_torch(captured, tmp_path, name, join, precision, least):
    torch = pytest.importorskip("torch")
    from stretch.export.bundle import BundleFacts, export_bundle
    from stretch.transform import build
    from tests.stretch.designs import cpu_and

    result = captured(name)
    model = build(result, cpu_and("dsp", result.graph, join))
    export_bundle(tmp_path / "b", result, model, None, BundleFacts("mi9", False, "random"), "0.1.0", controls=False)
    shape = result.graph.input.shape
    export_tflite(load_bundle(tmp_path / "b"), tmp_path / "t", synthetic_images(shape, 16), "synthetic", precision=precision)
    bundle = load_bundle(tmp_path / "t", check_hashes=True)
    x = synthetic_images(shape, 1, seed=7)[0]
    with Session(bundle, {"cpu": "litert", "dsp": "litert"}) as session, torch.inference_mode():
        tensors = session.tensors(x)
        assert {span.queue for span in session.trace.spans if span.kind == "subgraph"} == {"litert:cpu", "litert:dsp"}
        for sub in bundle.manifest.subgraphs:
            expected = model.branch(sub.segment, sub.processor)(torch.from_numpy(tensors[sub.input])).numpy()
            assert loss([(expected, tensors[sub.output])]).cosine >= least, sub.name
        assert loss([(model(torch.from_numpy(x)).numpy(), tensors[bundle.manifest.output])]).cosine >= 0.99


X = np.ones(4, np.float32)
EXACT = Loss(1.0, 200.0)

#: A wrong scale leaves the cosine as it is.
WRONG = loss([(X, X * np.float32(1.2))])


def comparison(least, current, fp32, onnx_fp32):
    return SignatureLosses(
        {"a": EXACT, "b": current}, {"a": EXACT, "b": fp32}, {"a": EXACT, "b": onnx_fp32}, {"a": MIN_COSINE, "b": least}, "runtime"
    )


@pytest.mark.parametrize("least", [MIN_COSINE, MIN_COSINE_ROUNDED])
def test_signature_below_its_bound_is_refused_by_name(least):
    assert WRONG.cosine == pytest.approx(1)
    with pytest.raises(InfeasibleError, match="signature `b`"):
        comparison(least, WRONG, WRONG, EXACT).refuse()


def test_where_both_round_a_lot_being_as_near_to_fp32_is_enough():
    apart, lossy = Loss(0.98, 13.8), Loss(0.979, 13.6)
    comparison(MIN_COSINE_ROUNDED, apart, lossy, Loss(0.98, 13.4)).refuse()
    with pytest.raises(InfeasibleError):
        comparison(MIN_COSINE_ROUNDED, apart, lossy, Loss(0.99, 13.6 + MARGIN_DB + 0.1)).refuse()
    with pytest.raises(InfeasibleError):  # reals have no such excuse
        comparison(MIN_COSINE, apart, lossy, lossy).refuse()
