import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from predictors.errors import StretchError
from scheduler.checks.judge import judge
from scheduler.checks.sample import KEY, Sample
from scheduler.checks.verify import random_input
from scheduler.delegates import CpuDelegate
from scheduler.delegates.base import Compiled, Invocation
from scheduler.runtime.distance import TOLERANCE
from scheduler.runtime.session import Session


class Wrong(CpuDelegate):
    """ONNX Runtime, whose results for one subgraph are then changed."""

    def __init__(self, subgraph, change):
        super().__init__()
        self._subgraph, self._change = subgraph, change

    def compile(self, model):
        right, change = super().compile(model), self._change if model.stem == self._subgraph else lambda y: y

        class Changed(Compiled):
            def bind(self, inputs, outputs):
                call = right.bind(inputs, outputs)

                class Call(Invocation):
                    def run(self):
                        call.run()
                        outputs[0][...] = change(outputs[0])

                return Call()

        return Changed(right.inputs, right.outputs)


def judged(path, subgraph=None, change=None):
    delegates = None if change is None else {"reference": Wrong(subgraph, change)}
    with Session(path, {"gpu": "reference"} if delegates else None, delegates=delegates) as session:
        return judge(session, random_input(session.bundle))


def rehash(bundles, path):
    """Make the manifest say that every file is as it should be."""
    entries = {f.relative_to(path).as_posix(): bundles.file_entry(f) for f in path.rglob("*.onnx")}
    bundles.edit(path, lambda m: m.update(files={k: {"bytes": e.bytes, "sha256": e.sha256} for k, e in entries.items()}))


@pytest.mark.parametrize("change", [lambda y: y * 1.86, lambda y: y * 0.99, lambda y: y * 0, lambda y: -y, lambda y: y[:, ::-1].copy()])
@pytest.mark.parametrize("subgraph", ["s1.gpu", "s2.gpu"])
def test_delegate_that_computes_something_else_is_named_with_the_subgraph(bundle_dir, subgraph, change):
    with pytest.raises(StretchError, match=f"subgraph `{subgraph}` on processor `gpu` \\(delegate `reference`\\) is off by") as caught:
        judged(bundle_dir, subgraph, change)
    assert "--map gpu=cpu" in caught.value.hint


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_delegate_that_gives_no_numbers_is_named(bundle_dir, value):
    with pytest.raises(StretchError, match=r"`s1.gpu` .* holds NaN or infinity, unlike that of model.onnx"):
        judged(bundle_dir, "s1.gpu", lambda y: np.full_like(y, value))


def test_rounding_of_another_order_of_sums_passes(bundle_dir):
    assert judged(bundle_dir, "s1.gpu", lambda y: y * np.float32(1 + 1e-5)).error < TOLERANCE["fp32"]


def test_swapped_and_rehashed_subgraph_is_named_by_its_file(bundles, tmp_path):
    path = bundles.two_branches(tmp_path / "b", processors=("cpu", "cpu[1large]"))
    model = onnx.load(path / "s2.cpu.onnx")
    shape = numpy_helper.to_array(model.graph.initializer[0]).shape
    wrong = np.random.default_rng(9).standard_normal(shape).astype(np.float32)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(wrong, model.graph.initializer[0].name))
    onnx.save(model, path / "s2.cpu.onnx")
    rehash(bundles, path)
    with pytest.raises(StretchError, match=r"subgraph `s2.cpu` is off by .*s2.cpu.onnx computes something else"):
        judged(path)


def test_weights_that_are_no_numbers_everywhere_are_told_of_the_whole_model(bundles, bundle_dir):
    for file in bundle_dir.rglob("*.onnx"):
        model = onnx.load(file)
        for tensor in model.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(np.nan), tensor.name))
        onnx.save(model, file)
    rehash(bundles, bundle_dir)
    with pytest.raises(StretchError, match=r"model.onnx gives NaN or infinity"):
        judged(bundle_dir)


def test_weights_that_were_changed_everywhere_differ_from_the_stored_sample(bundles, bundle_dir):
    x = np.random.default_rng(3).standard_normal((1, 3, 8, 8)).astype(np.float32)
    y = onnxruntime.InferenceSession(str(bundle_dir / "model.onnx")).run(None, {"x": x})[0]
    sample = Sample.of(x, y, 3)
    bundles.edit(bundle_dir, lambda m: m["checks"].update({KEY: {n: getattr(sample, n) for n in sample.__struct_fields__}}))
    assert judged(bundle_dir).stored is True
    for file in bundle_dir.rglob("*.onnx"):
        model = onnx.load(file)
        for tensor in model.graph.initializer:
            if tensor.name == "head.w":
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.1), tensor.name))
        onnx.save(model, file)
    rehash(bundles, bundle_dir)
    with pytest.raises(StretchError, match=r"differs by 0.1 of the largest number from what it gave when the bundle was written"):
        judged(bundle_dir)


def test_lower_precision_is_allowed_its_rounding_and_no_more(bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: [s.update(precision="fp16") for s in m["subgraphs"] if s["name"] == "s1.gpu"])
    half = Wrong("s1.gpu", lambda y: y * 1.02)
    half.precisions = ("fp32", "fp16")
    with Session(bundle_dir, {"gpu": "reference"}, delegates={"reference": half}) as session:
        found = judge(session, random_input(session.bundle))
    assert (found.measure, found.tolerance) == ("rms", TOLERANCE["fp16"])
    assert 0.001 < found.error < 0.05
    with pytest.raises(StretchError, match=r"`s1.gpu` .* is off by 0.1 of its size"):
        judged(bundle_dir, "s1.gpu", lambda y: y * 1.1)


def test_fp32_subgraph_before_a_rounded_one_is_held_to_fp32(bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: [s.update(precision="fp16") for s in m["subgraphs"] if s["name"] == "head"])
    with pytest.raises(StretchError, match=r"`s1.gpu` .* is off by 0.02 of its largest element"):
        judged(bundle_dir, "s1.gpu", lambda y: y * 1.02)
