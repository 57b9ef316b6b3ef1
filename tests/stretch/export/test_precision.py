import dataclasses
import shutil

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from predictors.errors import InfeasibleError, StretchError, UsageError
from scheduler.bundle.agreement import Agreement, BundleAgreement
from scheduler.bundle.load import load_bundle
from scheduler.bundle.statements import ROUNDING
from scheduler.checks.verify import allowed_end_to_end, verify_bundle
from scheduler.delegates import DspDelegate
from scheduler.measure.benchmark import Effort, benchmark, judge_speed
from scheduler.runtime.sequential import TOLERANCES
from scheduler.runtime.session import Session
from stretch.export.lowering import LAYER_IMAGES, PrecisionLowering
from stretch.export.precision import DEFAULT_ACCEPTANCE, Acceptance, export_precision
from stretch.export.quantize.images import synthetic_images
from stretch.export.quantize.replay import loss, replay, runner
from stretch.export.tflite import export_tflite
from tests.onnx_runtime import output, session
from tests.scheduler.bundles import Builder, edit, file_entry, two_branches

IMAGES = synthetic_images((1, 3, 8, 8), 16)

#: Runs int8 on ONNX Runtime's CPU kernels on any test machine.
ON_CPU = {"dsp": "cpu"}


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    return two_branches(tmp_path_factory.mktemp("floats") / "bundle", processors=("cpu", "dsp", "gpu"))


def written(floats, out, precision=None, acceptance=DEFAULT_ACCEPTANCE):
    return export_precision(load_bundle(floats), out, precision or {"dsp": "int8"}, IMAGES, "synthetic", acceptance)


@pytest.fixture(scope="module")
def int8(floats, tmp_path_factory):
    """The bundle with its dsp subgraphs in int8."""
    out = tmp_path_factory.mktemp("int8") / "bundle"
    written(floats, out)
    return out


@pytest.fixture
def copy(int8, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(int8, tmp_path / "copy")


def change(bundle, name, edit_model):
    """Change a file of a bundle and store its new hash in the manifest."""
    model = onnx.load(bundle / name)
    edit_model(model)
    onnx.save(model, bundle / name)
    edit(bundle, lambda data: data["files"].update({name: msgspec.to_builtins(file_entry(bundle / name))}))


def test_only_chosen_subgraphs_change_and_the_losses_of_layers_and_output_are_recorded(floats, int8):
    before, after = load_bundle(floats, check_hashes=True).manifest, load_bundle(int8, check_hashes=True).manifest
    assert {s.name: s.precision for s in after.subgraphs} == {s.name: "int8" if s.processor == "dsp" else "fp32" for s in before.subgraphs}
    changed = {name for name in before.files if before.files[name] != after.files[name]}
    assert changed == {"s1.dsp.onnx", "s2.dsp.onnx"}
    assert after.files.keys() - before.files.keys() == set(after.int8_controls.values())
    assert before.files.keys() <= after.files.keys()
    assert after.tensors == before.tensors  # joins stay float
    result = verify_bundle(int8)
    assert (result.ok, result.tolerance, result.max_error > 1e-4) == (True, None, True), result.problems
    record = load_bundle(int8).manifest.checks["precision"]
    assert record["subgraphs"].keys() == {"s1.dsp", "s2.dsp"}
    for item in record["subgraphs"].values():
        assert item["layers"]
        assert (item["cosine"] >= 0.999, item["snr_db"] > 30, item["input"]["scale"] > 0) == (True, True, True)
    assert record["output"]["top1_agreement"] >= 0.9
    assert record["images"] == {"source": "synthetic", "count": 16, "calibration": 16}
    assert record["joins"].keys() == {"s1.join", "s2.join"}


def test_loss_of_several_outputs_is_the_loss_of_the_worst(tmp_path):
    b = Builder(tmp_path / "b")
    b.conv("s.dsp", "s", "dsp", "x", "t", 6)
    b.head("h1.cpu", "h1", "cpu", "t", "first", 5)
    b.conv("h2.dsp", "h2", "dsp", "t", "second", 3)
    floats = b.write("first", "second")
    written(floats, tmp_path / "int8")
    checks = load_bundle(tmp_path / "int8").manifest.checks["precision"]
    assert verify_bundle(tmp_path / "int8").ok
    with Session(floats) as exact, Session(tmp_path / "int8", ON_CPU) as rounded:
        pairs = [(exact(image), rounded(image)) for image in IMAGES]
    snr_db = [loss((a[name], b[name]) for a, b in pairs).snr_db for name in ("first", "second")]
    assert checks["output"]["snr_db"] == pytest.approx(min(snr_db), abs=0.5) != pytest.approx(max(snr_db), abs=0.5)
    assert checks["output"]["top1_agreement"] is None


@pytest.mark.slow
def test_int8_branches_are_compared_with_the_original_in_int8(int8):
    with Session(int8, ON_CPU) as session:
        result = benchmark(session, IMAGES[0], Effort(rounds=3))
    assert {"original, dsp in int8 on cpu", "sequential_same_macs, dsp in int8 on cpu"} <= set(result.rounds)
    assert judge_speed(result, ["fp32", "int8"]).equal_precision


@given(st.floats(0, 3), st.sampled_from(["fp16", "int8"]))
def test_rounded_tensor_may_differ_by_twice_its_error_at_export_but_by_at_most_100_percent(error, precision):
    bound = allowed_end_to_end({"precision": {ROUNDING: {"t": error}}}, "t", precision)
    assert bound == max(TOLERANCES[precision], min(2 * error, 1))
    assert allowed_end_to_end({"precision": {ROUNDING: {"t": "much"}}}, "t", precision) == TOLERANCES[precision]


def joined(bundle, x):
    """Values at a bundle's joins after an inference with int8 on the CPU's integer kernels."""
    with Session(bundle, ON_CPU) as session:
        arrays = session.tensors(x)
        return {name: arrays[name].copy() for name in ("t1", "t2", "s1.dsp.y", "s1.cpu.y")}


def other_scale(model):
    """Make the last dequantisation use the scale of the input, like a runtime that does not re-quantise."""
    (last,) = [node for node in model.graph.node if node.output[0] == model.graph.output[0].name]
    (first,) = [node for node in model.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == model.graph.input[0].name]
    last.input[1:] = first.input[1:]


def integers(model):
    """Make the branch return its integers without dequantisation."""
    (last,) = [node for node in model.graph.node if node.output[0] == model.graph.output[0].name]
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1), "one"))
    model.graph.initializer.append(numpy_helper.from_array(np.uint8(0), "none"))
    last.input[1:] = ["one", "none"]


@pytest.mark.parametrize("spoil", [other_scale, integers])
@pytest.mark.parametrize(("file", "join"), [("s1.dsp.onnx", "t1"), ("s2.dsp.onnx", "t2")])
def test_int8_branch_is_requantised_before_its_join_and_verify_refuses_a_branch_without_it(floats, int8, copy, spoil, file, join):
    expected = [joined(floats, x)[join] for x in IMAGES[:4]]
    for x, want in zip(IMAGES, expected, strict=False):
        assert loss([(want, joined(int8, x)[join])]).snr_db > 30
    change(copy, file, spoil)
    assert loss([(expected[0], joined(copy, IMAGES[0])[join])]).exceeds(0.99)
    result = verify_bundle(copy)
    assert not result.ok
    assert "another scale than it was rounded in" in result.problems[0]


def test_wrong_weights_of_an_int8_subgraph_are_found_by_verify(copy):
    def negate(model):
        tensor = next(t for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 4)
        tensor.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(tensor), tensor.name))

    for file in ("s1.dsp.onnx", "s2.dsp.onnx"):
        change(copy, file, negate)
    (problem,) = verify_bundle(copy).problems
    assert "in int8 move the output" in problem


def test_subgraph_that_loses_too_much_is_refused_and_repair_keeps_the_others_in_int8(floats, int8, tmp_path):
    lost = load_bundle(int8).manifest.checks["precision"]["subgraphs"]
    better, worse = sorted(lost, key=lambda name: -lost[name]["cosine"])
    least = (lost[better]["cosine"] + lost[worse]["cosine"]) / 2
    with pytest.raises(InfeasibleError, match=rf"subgraph `{worse}` in int8 has a cosine of") as error:
        written(floats, tmp_path / "out", acceptance=Acceptance(least))
    assert "--fp32-fallback" in error.value.hint
    assert list(tmp_path.iterdir()) == []
    built = written(floats, tmp_path / "out", acceptance=Acceptance(least, repair=True))
    subgraphs = {s.name: (s.precision, s.processor) for s in built.manifest.subgraphs if "dsp" in s.name}
    assert (set(built.kept), subgraphs) == ({worse}, {worse: ("fp32", "cpu"), better: ("int8", "dsp")})


def test_precisions_that_cannot_be_written_are_refused(floats, int8, tmp_path):
    for source, out, precision, error, sentence in (
        (floats, tmp_path / "out", {"npu": "int8"}, UsageError, "does not use"),
        (floats, tmp_path / "out", {"dsp": "int4"}, UsageError, "is no precision"),
        (floats, tmp_path / "out", {"dsp": "fp32"}, UsageError, "nothing to export"),
        (floats, floats, None, UsageError, "cannot replace"),
        (int8, tmp_path / "out", None, StretchError, r"`s1\.dsp` is in int8 already"),
    ):
        with pytest.raises(error, match=sentence):
            written(source, out, precision)


@pytest.mark.slow
def test_fp16_next_to_int8_keeps_float_edges_and_its_loss_is_recorded(floats, tmp_path):
    export = written(floats, tmp_path / "out", {"gpu": "fp16", "dsp": "int8"})
    bundle = load_bundle(tmp_path / "out", check_hashes=True)
    for entry in bundle.manifest.subgraphs:
        if entry.processor == "gpu":
            model = onnx.load(bundle.file(entry.file))
            assert entry.precision == "fp16"
            assert {t.data_type for t in model.graph.initializer if len(t.dims) > 1} == {onnx.TensorProto.FLOAT16}
            assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
            assert export.losses[entry.name].cosine > 0.99999
            assert bundle.manifest.checks["precision"]["subgraphs"][entry.name]["layers"]
    assert {entry.precision for entry in bundle.manifest.subgraphs} == {"fp32", "fp16", "int8"}
    assert verify_bundle(tmp_path / "out").ok


@pytest.mark.slow
@pytest.mark.qnn
def test_dsp_agrees_with_fp32_next_to_the_other_processors(floats, int8, tmp_path):
    manifest = load_bundle(floats).manifest
    runs = {s.name: runner(str(floats / s.file)) for s in manifest.subgraphs}
    with Session(int8, delegates={"dsp": DspDelegate(tmp_path / "cache")}) as session:
        assert session.placements["dsp"].delegate == "dsp"
        for x in IMAGES[:3]:
            arrays = session.tensors(x)
            expected = replay(manifest, runs, x)
            for sub in manifest.subgraphs:
                assert loss([(expected[sub.output], arrays[sub.output])]).cosine >= 0.999, sub.name
            assert np.argmax(arrays["y"]) == np.argmax(expected["y"])


def test_tflite_file_of_the_fp32_subgraphs_is_left_out(floats, tmp_path):
    export_tflite(load_bundle(floats), tmp_path / "lite", IMAGES[:2], "synthetic")
    assert load_bundle(tmp_path / "lite").manifest.tflite is not None
    written(tmp_path / "lite", tmp_path / "mixed")
    mixed = load_bundle(tmp_path / "mixed", check_hashes=True).manifest
    assert (mixed.tflite, "tflite" in mixed.checks, list((tmp_path / "mixed").rglob("*.tflite"))) == (None, False, [])


def test_agreement_of_the_old_files_is_dropped_from_the_new_bundle(floats, tmp_path):
    share = {"value": 1.0, "low": 0.9, "high": 1.0, "top5_overlap": None, "error": 0.0, "images": 8}
    agreement = Agreement(**share, bundle=BundleAgreement(**share, precisions={"dsp": ("int8",)}, delegates={"dsp": "cpu"}))
    bundle = load_bundle(floats)
    bundle = dataclasses.replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, agreement=agreement))
    manifest = export_precision(bundle, tmp_path / "made", {"dsp": "int8"}, IMAGES, "synthetic").manifest
    assert manifest.agreement == msgspec.structs.replace(agreement, bundle=None)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_loss_is_measured_on_the_output_with_the_inputs_of_the_float_form(floats, precision):
    bundle, images = load_bundle(floats), IMAGES[:8]
    first = next(sub for sub in bundle.manifest.subgraphs if sub.inputs == bundle.manifest.inputs)
    lowered = PrecisionLowering(bundle, {first.name: precision}, images, lambda *_: None).lower(first)
    want = np.stack([output(bundle.file(first.file), x) for x in images])
    # without fusion, because fused kernels on processors with only AVX2 add pairs of products in 16 bits
    plain = {"graph_optimization_level": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL}
    running = session(lowered.model.SerializeToString(), **plain)
    got = np.stack([running.run(None, {running.get_inputs()[0].name: x})[0] for x in images])
    assert lowered.precision == precision
    assert (lowered.edges is None) == (precision == "fp16")
    assert lowered.loss.snr_db == pytest.approx(20 * np.log10(np.linalg.norm(want) / np.linalg.norm(want - got)), abs=1.0)
    assert len(images) > LAYER_IMAGES
    assert lowered.layers
