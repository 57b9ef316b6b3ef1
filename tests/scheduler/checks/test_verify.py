import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.checks import verify
from scheduler.runtime.sequential import TOLERANCES
from scheduler.runtime.session import Session
from stretch.export.quantize.images import synthetic_images
from stretch.export.tflite import export_tflite
from tests.corpus import mutations
from tests.scheduler.doubles import Hooked, numbers, whole


def change_weight(folder, file, factor, name=None):
    """Multiply the weights called `name`, or all weights, and update the file's hash."""
    model = onnx.load(folder / file)
    for weight in model.graph.initializer:
        if name in (None, weight.name):
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(factor), weight.name))
    (folder / file).write_bytes(model.SerializeToString())
    mutations.hashed(folder, file)


@pytest.mark.parametrize(("factor", "ok"), [(1, True), (1 + 1e-7, True), (1.5, False), (np.nan, False)])
def test_subgraph_with_other_weights_than_the_whole_model_is_found_despite_a_matching_hash(bundle_dir, factor, ok):
    change_weight(bundle_dir, "s2.gpu.onnx", factor)
    result = verify.verify_bundle(bundle_dir)
    assert result.ok == ok
    assert (result.problems == ()) == ok == (result.max_error is not None and result.max_error <= verify.TOLERANCE)
    assert ok or ("NaN" if np.isnan(factor) else "differ from model.onnx") in result.problems[0]


def test_subgraph_that_does_not_load_is_a_problem_or_one_sentence(bundle_dir):
    with pytest.raises(StretchError, match="cannot run"):
        verify.run_file(bundle_dir / "stem.onnx", np.zeros((1, 4, 8, 8), np.float32))
    model = onnx.load(bundle_dir / "stem.onnx")
    model.graph.node[0].op_type = "NoSuchOp"
    (bundle_dir / "stem.onnx").write_bytes(model.SerializeToString())
    mutations.hashed(bundle_dir, "stem.onnx")
    assert "NoSuchOp" in verify.verify_bundle(bundle_dir).problems[0]
    (bundle_dir / "stem.onnx").write_bytes(b"garbage")
    with pytest.raises(StretchError, match="cannot load"):
        verify.run_file(bundle_dir / "stem.onnx", np.zeros((1, 3, 8, 8), np.float32))


def test_truncated_tflite_file_is_a_problem(bundle_dir, tmp_path):
    pytest.importorskip("ai_edge_litert")
    folder = tmp_path / "tflite"
    export_tflite(load_bundle(bundle_dir), folder, synthetic_images((1, 3, 8, 8), 8), "synthetic")
    (folder / "model.tflite").write_bytes((folder / "model.tflite").read_bytes()[:-200])
    assert "model.tflite has" in verify.verify_bundle(folder).problems[0]
    mutations.hashed(folder, "model.tflite")
    assert "no TFLite file" in verify.verify_bundle(folder).problems[0]


def wrong(subgraph, change):
    """ONNX Runtime with changed results of one subgraph."""

    def hook(model, run, outputs):
        run()
        if model.stem == subgraph:
            outputs[0][...] = change(outputs[0])

    return Hooked(hook)


def judged(path, subgraph=None, change=None):
    delegates = None if change is None else {"reference": wrong(subgraph, change)}
    with Session(path, {"gpu": "reference"} if delegates else None, delegates=delegates) as session:
        return verify.compare_with_reference(session, verify.random_input(session.bundle)).check


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((change, "off by") for change in (lambda y: y * 1.86, lambda y: y * 0.99, lambda y: y * 0, lambda y: -y)),
        (lambda y: y[:, ::-1].copy(), "off by"),
        *((lambda y, value=value: np.full_like(y, value), "NaN or infinity") for value in (np.nan, np.inf)),
    ],
)
@pytest.mark.parametrize("subgraph", ["s1.gpu", "s2.gpu"])
def test_delegate_with_wrong_results_is_named_with_the_subgraph(bundle_dir, subgraph, change, message):
    with pytest.raises(StretchError, match=f"`{subgraph}` on processor `gpu` \\(delegate `reference`\\).*{message}") as caught:
        judged(bundle_dir, subgraph, change)
    assert "--map gpu=cpu" in caught.value.hint
    # rounding differences of sums in another order are no error
    assert judged(bundle_dir, subgraph, lambda y: y * np.float32(1 + 1e-5)).error < TOLERANCES["fp32"]


def test_swapped_and_rehashed_subgraph_is_named_by_its_file(bundles, tmp_path):
    path = bundles.two_branches(tmp_path / "b", processors=("cpu", "cpu[1large]"))
    change_weight(path, "s2.cpu.onnx", -1)
    with pytest.raises(StretchError, match=r"subgraph `s2.cpu` is off by .*s2.cpu.onnx computes something else"):
        judged(path)


def test_weights_that_were_changed_everywhere_differ_from_the_stored_sample(bundles, bundle_dir):
    sample = verify.Sample.of(numbers(3), whole(bundle_dir, numbers(3)), 3)
    bundles.edit(bundle_dir, lambda m: m["checks"].update({verify.KEY: {n: getattr(sample, n) for n in sample.__struct_fields__}}))
    assert judged(bundle_dir).stored is True
    for file in bundle_dir.rglob("*.onnx"):
        change_weight(bundle_dir, str(file.relative_to(bundle_dir)), 1.1, "head.w")
    with pytest.raises(StretchError, match=r"differs by 0.1 of the largest number from its result when the bundle was written"):
        judged(bundle_dir)


def test_lower_precision_may_differ_only_by_its_rounding(bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: [s.update(precision="fp16") for s in m["subgraphs"] if s["name"] == "s1.gpu"])
    half = wrong("s1.gpu", lambda y: y * 1.02)
    half.precisions = ("fp32", "fp16")
    with Session(bundle_dir, {"gpu": "reference"}, delegates={"reference": half}) as session:
        verdict = verify.compare_with_reference(session, verify.random_input(session.bundle)).check
    assert (verdict.measure, verdict.tolerance) == ("rms", TOLERANCES["fp16"])
    assert 0.001 < verdict.error < 0.05
    with pytest.raises(StretchError, match=r"`s1.gpu` .* is off by 0.1 of its size"):
        judged(bundle_dir, "s1.gpu", lambda y: y * 1.1)


def test_fp32_subgraph_before_a_rounded_one_is_checked_with_the_fp32_tolerance(bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: [s.update(precision="fp16") for s in m["subgraphs"] if s["name"] == "head"])
    with pytest.raises(StretchError, match=r"`s1.gpu` .* is off by 0.02 of its largest element"):
        judged(bundle_dir, "s1.gpu", lambda y: y * 1.02)


X = numbers()


@pytest.mark.parametrize("size", [1, 5, 64, 65, 1000])
def test_unchanged_output_is_no_problem_and_the_sample_survives_json(size):
    y = numbers(size, (1, size))
    sample = verify.read_sample({verify.KEY: msgspec.json.decode(msgspec.json.encode(verify.Sample.of(X, y, 0)))})
    assert len(sample.values) == min(size, verify.MAX_VALUES)
    assert sample.problem(X, y) is sample.problem(X, y * np.float32(1 + 1e-5)) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y * 1.01, "differs by 0.01 of the largest number"),
        (lambda y: y * np.nan, "differs by nan"),
        (lambda y: y[:, ::-1], "differs by"),
        (lambda y: y[:, :-1], "has an output of 999 numbers, 1000 when"),
    ],
)
def test_changed_output_is_a_problem(change, message):
    y = numbers(1, (1, 1000))
    assert message in verify.Sample.of(X, y, 0).problem(X, change(y))


def test_bundle_may_lack_a_sample_but_a_damaged_sample_is_refused():
    assert verify.read_sample({}) is None
    for garbage in (1, {"seed": "x"}, {"seed": 0, "input_sha256": "", "size": 1, "values": ["a"]}):
        with pytest.raises(StretchError, match=r"`checks\.sample` of the bundle is damaged"):
            verify.read_sample({verify.KEY: garbage})
