"""A bundle's networks are those that it was written of, whatever its joins are."""

import json
import random
import shutil

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from stretch.capture import capture
from stretch.export.bundle import BundleFacts, export_bundle
from stretch.export.precision import export_precision
from stretch.quantize.images import synthetic_images
from stretch.stages.reopen import reopen
from stretch.transform import build
from tests.corpus.mutations import VALUES, swapped
from tests.effort import examples
from tests.stretch import exact_bundles
from tests.stretch.channel_networks import small, small_in_channels
from tests.stretch.designs import cpu_and

FACTS = BundleFacts("mi9", False, "random")


def written(folder, result, design, **options):
    model = build(result, design)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            # no longer what the original has
            parameter.mul_(1 + 0.01 * (number % 3))
    export_bundle(folder, result, model, None, FACTS, "0.1.0", **options)
    return load_bundle(folder, check_hashes=True), model.eval()


NETWORKS = {
    **{
        join: (lambda join=join: (found := _captured("tiny_resnet"), cpu_and("gpu", found.graph, join)))
        for join in ("sum", "concat", "project")
    },
    "depthwise": lambda: (found := _captured("tiny_mobilenet"), cpu_and("gpu", found.graph, "sum")),
    "bands and paths": lambda: (
        found := capture(exact_bundles.network(), (1, 3, exact_bundles.HEIGHT, exact_bundles.WIDTH), "net"),
        exact_bundles.designed(found.graph),
    ),
    "channels": lambda: (found := small(), small_in_channels(found.graph)),
}


def _captured(name):
    from stretch.models.load import load_model

    loaded = load_model(name, weights="none")
    return capture(loaded.module, loaded.input_shape, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_reopened_networks_compute_what_those_that_were_written_compute(tmp_path, name):
    result, design = NETWORKS[name]()
    bundle, model = written(tmp_path / "b", result, design)
    reopened = reopen(bundle)
    x = torch.randn(3, *result.graph.input.shape[1:])
    with torch.inference_mode():
        for got, want in ((reopened.model(x), model(x)), (reopened.original.module(x), result.module.eval()(x))):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))
    assert {name for name, _ in reopened.model.named_parameters()} == {name for name, _ in model.named_parameters()}
    assert not reopened.model.training


def test_bundle_without_the_original_is_refused(captured, tmp_path):
    result = captured("tiny_resnet")
    bundle, _ = written(tmp_path / "b", result, cpu_and("gpu", result.graph, "sum"), controls=False)
    with pytest.raises(StretchError, match="without controls"):
        reopen(bundle)


def test_bundle_in_another_precision_is_refused_by_the_subgraph(captured, tmp_path):
    result = captured("tiny_resnet")
    bundle, _ = written(tmp_path / "b", result, cpu_and("gpu", result.graph, "sum"))
    export_precision(bundle, tmp_path / "half", {"gpu": "fp16"}, synthetic_images(result.graph.input.shape, 8), "made up")
    with pytest.raises(StretchError, match=r"in fp16, and weights can be changed in fp32 alone"):
        reopen(load_bundle(tmp_path / "half"))


def test_file_that_computes_something_else_is_refused(captured, tmp_path):
    """The branched network's whole file is another's; its hash is not looked at here."""
    result = captured("tiny_resnet")
    bundle, _ = written(tmp_path / "b", result, cpu_and("gpu", result.graph, "sum"))
    other, _ = written(tmp_path / "other", _captured("tiny_resnet"), cpu_and("gpu", result.graph, "sum"))
    import onnx

    model = onnx.load(str(other.file("model.onnx")))
    for tensor in model.graph.initializer:
        if len(tensor.dims) == 4:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * 2, tensor.name))
    onnx.save(model, str(bundle.file("model.onnx")))
    with pytest.raises(StretchError, match="differs from torch"):
        reopen(bundle)


@pytest.fixture(scope="module")
def whole(captured, tmp_path_factory):
    """The folder of a bundle that nobody has tampered with."""
    result = captured("tiny_resnet")
    bundle, _ = written(tmp_path_factory.mktemp("whole") / "b", result, cpu_and("gpu", result.graph, "sum"))
    return bundle.path


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(seed=3944773)  # a width of four hundred digits
@example(seed=1097)  # branches of no width
@example(seed=17168)  # a segment called ".."
@example(seed=2346)  # a segment called "cpu", as a method of every module
@given(seed=st.integers(0, 2**32))
def test_design_that_was_tampered_with_is_refused_in_a_sentence_or_is_of_the_same_original(captured, whole, seed):
    result, bundle = captured("tiny_resnet"), whole
    text = json.loads((bundle / "bundle.json").read_text())
    text["design"] = swapped(random.Random(seed), text["design"], VALUES)
    path = bundle.parent / "tampered"
    shutil.copytree(bundle, path, dirs_exist_ok=True)
    (path / "bundle.json").write_text(json.dumps(text))
    try:
        reopened = reopen(load_bundle(path))
    except StretchError:
        return
    x = torch.randn(1, *result.graph.input.shape[1:])
    with torch.inference_mode():
        torch.testing.assert_close(reopened.original.module(x), result.module.eval()(x), rtol=1e-3, atol=1e-3)
