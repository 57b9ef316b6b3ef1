"""The user's own file is the reference for the network read from it, for its bundle, and for the bundle's times."""

import hashlib

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import stretch  # noqa: E402
from predictors.errors import StretchError  # noqa: E402
from scheduler.answer import run_answer  # noqa: E402
from scheduler.bundle.load import load_bundle  # noqa: E402
from scheduler.bundle.manifest import FileEntry  # noqa: E402
from scheduler.checks.verify import compare_with_reference, random_input, verify_bundle  # noqa: E402
from scheduler.formats.tflite import ANY_TFLITE  # noqa: E402
from scheduler.measure.benchmark import Effort, benchmark  # noqa: E402
from scheduler.measure.energy import MeasuredEnergy  # noqa: E402
from scheduler.runtime.session import Session  # noqa: E402
from stretch.api.exporting import export  # noqa: E402
from stretch.network.models.load import load_model  # noqa: E402
from stretch.report.plan import plan_page  # noqa: E402
from stretch.stages.own_file import check_own_file  # noqa: E402
from tests import onnx_runtime  # noqa: E402
from tests.stretch.network.models.onnx.oracle import net, random  # noqa: E402
from tests.stretch.network.models.tflite import files as tflite  # noqa: E402

WEIGHTS = {"w": random((8, 3, 3, 3), 1, 0.3), "v": random((6, 8, 3, 3), 2, 0.3)}
SHAPE = (1, 3, 12, 10)
CONV, NEXT = (
    helper.make_node("Conv", ends, [f"{name}_out"], name, pads=[1] * 4) for name, ends in (("one", ["x", "w"]), ("two", ["r", "v"]))
)
RELU = helper.make_node("Relu", ["one_out"], ["r"], "relu")
LAYERS = (CONV, RELU, NEXT)


def saved(path, *nodes, outputs=("two_out",), **more):
    model = net(*nodes, stored=WEIGHTS | more.pop("stored", {}), shape=more.pop("shape", SHAPE), outputs=outputs, **more)
    onnx.save(model, str(path))
    return path


def onnx_file(folder):
    return saved(folder / "net.onnx", *LAYERS)


def tflite_file(folder):
    stored = {"w": random((8, 3, 3, 4), 1), "b": random((8,), 2), "v": random((5, 1, 1, 8), 3), "c": random((5,), 4)}
    strides = {"stride_w": 1, "stride_h": 1, "dilation_w_factor": 1, "dilation_h_factor": 1}
    layers = [tflite.op("CONV_2D", [x, w, b], [y], **strides) for x, w, b, y in (("x", "w", "b", "one"), ("r", "v", "c", "two"))]
    return tflite.write(folder / "net.tflite", layers[0], tflite.op("TANH", ["one"], ["r"]), layers[1], stored=stored, outputs=("two",))


def archive(folder):
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.SELU(), torch.nn.Conv2d(8, 4, 3))
    torch.export.save(torch.export.export(layers.eval(), (torch.zeros(SHAPE),)), folder / "net.pt2")
    return folder / "net.pt2"


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("write", "first"), [(onnx_file, r"node `two` \(Conv\)"), (tflite_file, r"operator `two` \(CONV_2D\)"), (archive, None)]
)
def test_network_that_differs_from_its_file_is_refused_with_the_first_differing_operator(tmp_path, write, first):
    loaded = load_model(str(write(tmp_path)), trust_code=True)
    assert check_own_file(loaded)[0] == []
    with torch.no_grad():
        [weight] = [p for p in loaded.module.parameters() if p.dim() == 4][1:]
        weight.mul_(1.03)
    with pytest.raises(StretchError, match=f"differs by 0.0[23].*{f'first difference is at {first}' if first else ''}"):
        check_own_file(loaded)


@pytest.mark.parametrize(
    ("nodes", "opset", "reason"),
    [
        ([*LAYERS, helper.make_node("Dropout", ["two_out", "ratio", "on"], ["y"])], 17, "training mode"),
        ([*LAYERS, helper.make_node("Identity", ["two_out"], ["y"])], 27, "ONNX Runtime cannot load"),
    ],
)
def test_file_without_a_reference_runtime_gives_a_warning(tmp_path, nodes, opset, reason):
    numbers = {"ratio": np.float32(0.5), "on": np.bool_(True)}
    path = saved(tmp_path / "net.onnx", *nodes, outputs=("y",), opset=opset, stored=numbers)
    try:
        messages, reference = check_own_file(load_model(str(path)))
    except StretchError as error:
        messages, reference = [error.message], None
    assert ([reason in message for message in messages], reference) == ([True], None)


def branched(path, folder=None):
    return stretch.branch(str(path), "mi9", out=folder, kinds=("channels", "rows", "graph"), trust_code=True, dry_run=folder is None)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("opset", [17, 27])
def test_plan_states_whether_its_output_was_compared_with_the_file(tmp_path, opset):
    built = branched(saved(tmp_path / "net.onnx", *LAYERS, opset=opset))
    page = plan_page(built.plan, built)
    assert any("own reading of the file only" in str(line) for line in page.brief) == (opset == 27)


def test_torch_archive_gives_a_warning_that_the_bundle_holds_a_rewritten_file(tmp_path):
    assert any("net.pt2 written again" in warning for warning in branched(archive(tmp_path), tmp_path / "bundle").warnings)


def test_quantised_file_as_a_control_is_marked_as_not_comparable(tmp_path):
    rounding = [
        helper.make_node(f"{kind}Linear", [x, "s", "z"], [y]) for kind, x, y in (("Quantize", "x", "q"), ("Dequantize", "q", "back"))
    ]
    first = helper.make_node("Conv", ["back", "w"], ["one_out"], pads=[1] * 4)
    path = saved(tmp_path / "net.onnx", *rounding, first, RELU, NEXT, stored={"s": np.float32(0.05), "z": np.int8(0)})
    folder = branched(path, tmp_path / "bundle").bundle
    assert "not compared" in verify_bundle(folder).uncompared
    with Session(folder) as session:
        x = random_input(session.bundle)
        right, result = compare_with_reference(session, x), benchmark(session, x, Effort(rounds=2, warmup=1))
        answer = run_answer(session, result, right, None, MeasuredEnergy(None, None, None))
    assert "not compared" in answer.check.against
    assert "controls fp32 and int8" in answer.verdict
    assert not answer.equal_precision


@pytest.mark.slow
def test_other_delegates_also_time_the_file_as_the_original(tmp_path):
    folder = branched(saved(tmp_path / "net.onnx", *LAYERS, opset=18), tmp_path / "bundle").bundle
    with Session(folder, {"cpu": "opencl", "gpu": "opencl"}) as session:
        (folder / "captured.onnx").write_bytes(b"")
        result = benchmark(session, random_input(session.bundle), Effort(rounds=2, warmup=1))
    assert any(name.startswith("original, ") and "opencl" in name for name in result.rounds)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("write", [onnx_file, tflite_file])
def test_bundle_holds_its_source_file_times_it_and_is_compared_with_it(tmp_path, write):
    path = write(tmp_path)
    result = branched(path, tmp_path / "bundle")
    assert (tmp_path / "bundle" / "controls" / f"original{path.suffix}").read_bytes() == path.read_bytes()
    assert verify_bundle(result.bundle).ok
    with Session(result.bundle) as session:
        x = random_input(session.bundle)
        assert compare_with_reference(session, x).check.against == f"model.onnx and your file, controls/original{path.suffix}"
        assert benchmark(session, x, Effort(rounds=2, warmup=1)).sequential is not None


def test_bundle_with_a_replaced_file_is_refused(tmp_path):
    result = branched(onnx_file(tmp_path), tmp_path / "bundle")
    folder = result.bundle
    other = folder / "controls" / "original.onnx"
    saved(other, CONV, helper.make_node("LeakyRelu", ["one_out"], ["r"]), NEXT)
    content, manifest = other.read_bytes(), result.manifest
    entry = FileEntry(len(content), hashlib.sha256(content).hexdigest())
    changed = msgspec.structs.replace(manifest, files={**manifest.files, "controls/original.onnx": entry})
    (folder / "bundle.json").write_bytes(msgspec.json.encode(changed))
    problems = verify_bundle(folder).problems
    assert len(problems) == 1
    assert "controls/original.onnx" in problems[0]
    with Session(load_bundle(folder)) as session, pytest.raises(StretchError, match="differs from the file"):
        compare_with_reference(session, random_input(session.bundle))


def test_file_with_open_batch_and_external_weights_is_stored_completely(tmp_path):
    model = onnx.load(str(onnx_file(tmp_path)))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    path = tmp_path / "outside.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, location="outside.bin", size_threshold=0)
    folder = branched(path, tmp_path / "bundle").bundle
    assert (folder / "controls" / "outside.bin").read_bytes() == (tmp_path / "outside.bin").read_bytes()
    assert verify_bundle(folder).ok


@pytest.mark.parametrize(
    ("last", "outputs"),
    [
        (helper.make_node("Identity", ["two_out"], ["z"]), ("two_out", "z", "two_out")),
        # indices are integers and are returned as floats
        (helper.make_node("ArgMax", ["two_out"], ["y"], axis=1), ("y",)),
    ],
    ids=["one tensor", "indices"],
)
def test_repeated_outputs_and_integer_outputs_are_all_returned(tmp_path, last, outputs):
    path, x = saved(tmp_path / "net.onnx", *LAYERS, last, outputs=outputs), random(SHAPE)
    want = onnx_runtime.session(path).run(None, {"x": x})
    with Session(branched(path, tmp_path / "bundle").bundle) as session:
        got = session(x)
    got = list(got.values()) if len(outputs) > 1 else [got]
    assert len(got) == len(want) == len(outputs)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def integer_file(folder):
    node = helper.make_node("ConvInteger", ["x", "k"], ["y"])
    return saved(folder / "net.onnx", node, outputs=("y",), kind=TensorProto.UINT8, stored={"k": np.ones((4, 3, 3, 3), np.uint8)})


def conditional_file(folder):
    body = helper.make_graph([helper.make_node("Identity", ["r"], ["inner"])], "body", [], [onnx.ValueInfoProto(name="inner")])
    chosen = helper.make_node("If", ["on"], ["y"], then_branch=body, else_branch=body)
    most = helper.make_node("ReduceMax", ["r"], ["most"], keepdims=0)
    on = helper.make_node("Greater", ["most", "limit"], ["on"])
    return saved(folder / "net.onnx", CONV, RELU, most, on, chosen, outputs=("y",), stored={"limit": np.float32(1)})


def two_subgraphs_file(folder):
    tables = ANY_TFLITE.decode(tflite_file(folder).read_bytes(), allow_unknown=True)
    tables["subgraphs"] *= 2
    (folder / "two.tflite").write_bytes(bytes(ANY_TFLITE.encode(tables)))
    return folder / "two.tflite"


@pytest.mark.parametrize(
    ("write", "message", "hint"),
    [
        (integer_file, "whole numbers", "QuantizeLinear"),
        (conditional_file, "decides by what is computed", "without it"),
        (two_subgraphs_file, "2 subgraphs", "convert"),
    ],
)
def test_unreadable_file_is_refused_with_an_alternative(tmp_path, write, message, hint):
    with pytest.raises(StretchError, match=message) as caught:
        load_model(str(write(tmp_path)))
    assert hint in caught.value.hint


UP = helper.make_node("ConvTranspose", ["r", "up"], ["y"], "up", strides=[2, 2])
SUM = helper.make_node("Einsum", ["r", "r"], ["y"], "sum", equation="nchw,ndhw->ncd")
SPREAD = helper.make_node("LRN", ["r"], ["y"], "spread", size=3)


@pytest.mark.representatives(1)
@pytest.mark.parametrize(("node", "kind"), [(UP, "conv_transpose2d"), (SUM, "matmul|einsum"), (SPREAD, "view|avg_pool3d")])
def test_torch_operators_are_exported_as_code_and_named_if_tflite_has_no_lowering(tmp_path, node, kind):
    path = saved(tmp_path / "net.onnx", CONV, RELU, node, outputs=("y",), stored={"up": random((8, 4, 2, 2), 3)})
    folder = branched(path, tmp_path / "bundle").bundle
    assert export(folder, tmp_path / "code", "code").max_error < 1e-5
    with pytest.raises(StretchError, match=rf"`\S+` \(({kind})\) of subgraph .* ha(s|ve) no TFLite lowering"):
        export(folder, tmp_path / "tflite", "tflite")
