"""How often a branched network agrees with its original, in torch and in its files."""

import msgspec
import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from predictors.devices import load_device
from predictors.errors import StretchError
from predictors.joins import join_of
from scheduler.bundle.load import load_bundle
from scheduler.runtime.sequential import Sequential
from scheduler.runtime.session import Session
from stretch.capture import capture
from stretch.capture.results import tensors
from stretch.evaluation.agreement import compare
from stretch.evaluation.files import measure_files
from stretch.export.precision import export_precision
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from stretch.quantize.images import synthetic_images
from stretch.transform import build
from stretch.transform.calibrate import whole_design
from tests.effort import examples
from tests.scheduler.bundles import two_branches
from tests.stretch.designs import cpu_and, identity_design, random_designs
from tests.stretch.several import form


def images(result, count=12, seed=0):
    """Four colours each: networks with random weights answer noise with one class alone."""
    _, channels, rows, columns = result.graph.input.shape
    colours = 2 * torch.randn(count, channels, 2, 2, generator=torch.Generator().manual_seed(seed))
    return list(colours.repeat_interleave(rows // 2, 2).repeat_interleave(columns // 2, 3).split(5))


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(st.data())
def test_shares_and_errors_are_those_that_torch_counts(captured, data):
    result = captured("tiny_resnet")
    model = build(result, data.draw(random_designs(result.graph))).eval()
    batches = images(result, seed=data.draw(st.integers(0, 5)))
    with torch.no_grad():
        x = torch.cat(batches)
        ours, theirs = model(x), result.module(x)
    agreement = compare(model, result, batches).agreement
    assert agreement.value == pytest.approx(float((ours.argmax(1) == theirs.argmax(1)).float().mean()))
    assert agreement.error == pytest.approx(float((ours - theirs).norm() / theirs.norm()), rel=1e-3, abs=1e-5)
    best = [[set(row.topk(5).indices.tolist()) for row in scores] for scores in (ours, theirs)]
    assert agreement.top5_overlap == pytest.approx(sum(len(a & b) for a, b in zip(*best, strict=True)) / 5 / len(x))


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(st.data())
def test_segment_alone_is_the_original_with_that_segment_in_its_place(captured, data):
    result = captured("tiny_resnet")
    design = data.draw(random_designs(result.graph))
    model = build(result, design).eval()
    batches = images(result)
    there = build(result, whole_design(result, design)).eval()
    mapping = {segment.segment: segment for segment in compare(model, result, batches).agreement.segments}
    for part in design.segments:
        if join_of(part.join).widens or part.name not in mapping or mapping[part.name].error is None:
            continue
        with torch.no_grad():
            x = torch.cat(batches)
            want = result.module(x)
            for other in design.segments:
                x = (model if other is part else there).get_submodule(other.name)(x)
        assert mapping[part.name].value == pytest.approx(float((x.argmax(1) == want.argmax(1)).float().mean()))
        assert mapping[part.name].error == pytest.approx(float((x - want).norm() / want.norm()), rel=1e-3, abs=1e-5)


def test_segment_that_hands_on_other_channels_cannot_stand_alone(captured):
    result = captured("tiny_resnet")
    design = cpu_and("gpu", result.graph, "concat")
    mapping = {segment.segment: segment for segment in compare(build(result, design), result, images(result)).agreement.segments}
    wider = [part.name for part in design.segments if join_of(part.join).widens]
    assert wider
    assert all(mapping[name].error is None and mapping[name].value is None for name in wider)


def test_outputs_that_are_no_classes_are_told_by_their_error():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 1)).eval()
    captured = capture(net, (1, 3, 8, 8), "map")
    compared = compare(build(captured, identity_design(captured.graph)), captured, images(captured))
    assert (compared.agreement.value, compared.agreement.low, compared.agreement.top5_overlap) == (None,) * 3
    assert (compared.agreement.classes, compared.classes) == (None, {})
    assert compared.agreement.error < 1e-5


@pytest.mark.parametrize(("others", "arguments"), [(1, False), (3, True)])
def test_agreement_is_given_only_where_the_original_answers_several_classes(captured, others, arguments):
    result = captured("tiny_resnet")
    every = torch.cat(images(result))
    with torch.no_grad():
        best = result.module(every).argmax(1)
    one, other = (every[best == value] for value in best.unique()[:2])
    batch = torch.cat([one[:1].expand(20 - others, -1, -1, -1), other[:1].expand(others, -1, -1, -1)])
    compared = compare(build(result, identity_design(result.graph)), result, [batch])
    assert sorted(compared.classes.values()) == [others, 20 - others]
    assert (compared.agreement.value, compared.agreement.classes) == (1.0 if arguments else None, 2)
    assert compared.agreement.error < 1e-5


def test_output_that_is_not_finite_is_refused(captured):
    result = captured("tiny_resnet")
    model = build(result, identity_design(result.graph))
    with torch.no_grad():
        next(iter(reversed(list(model.parameters())))).fill_(float("nan"))
    with pytest.raises(StretchError, match="NaN or infinity"):
        compare(model, result, images(result))


def test_of_several_outputs_each_counts_alike_and_there_is_no_class():
    captured = capture(*form("pyramid"), "pyramid")
    loose = PlanConfig(processors=("cpu", "gpu"), alpha=1e3, beta=1e3, balance=1e-3, macs=(0.4, 2.0), segment_macs=0.1)
    model = build(captured, plan(captured.graph, load_device("mi9"), loose).design)
    images = [torch.randn(3, 3, 16, 16), torch.randn(2, 3, 16, 16)]
    agreement = compare(model, captured, images).agreement
    assert (agreement.value, agreement.images) == (None, 5)
    squares = []
    with torch.no_grad():
        for batch in images:
            pairs = zip(tensors(model(batch)), tensors(captured.module(batch)), strict=True)
            squares += [len(batch) * float((a - b).square().sum() / b.square().sum()) for a, b in pairs]
    count = len(captured.graph.outputs)
    assert agreement.error == pytest.approx((sum(squares) / (5 * count)) ** 0.5, rel=1e-4)
    same = build(captured, whole_design(captured, model.design))
    assert compare(same, captured, images).agreement.error == pytest.approx(0.0, abs=1e-5)


IMAGES = synthetic_images((1, 3, 8, 8), 30)
FITTED, OTHERS = IMAGES[:16], IMAGES[16:]


def planned(folder, precision):
    """A bundle whose plan assumes a precision for each processor."""
    two_branches(folder, processors=tuple(precision))
    bundle = load_bundle(folder)
    entries = tuple(msgspec.structs.replace(s, planned_precision=precision[s.processor]) for s in bundle.manifest.subgraphs)
    (folder / "bundle.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(bundle.manifest, subgraphs=entries)))
    return load_bundle(folder)


@pytest.mark.slow
@pytest.mark.parametrize("precision", [{"cpu": "int8", "gpu": "fp16"}])
def test_what_is_measured_is_what_the_exported_bundle_gives(tmp_path, precision):
    bundle = planned(tmp_path / "b", precision)
    original = Sequential(bundle.file(bundle.manifest.whole)).run
    agreement = measure_files(bundle, lambda x: original(x) + 1, FITTED, OTHERS).agreement
    assert agreement.precisions == {name: (current,) for name, current in precision.items()}
    assert agreement.delegates == dict.fromkeys(precision, "cpu")
    if set(precision.values()) != {"fp32"}:
        export_precision(bundle, tmp_path / "lower", precision, FITTED, "synthetic", min_cosine=0.5)
        bundle = load_bundle(tmp_path / "lower")
    with Session(bundle, dict.fromkeys(precision, "cpu0")) as session:
        got = [session.run(x) for x in OTHERS]
    want = [original(x) + 1 for x in OTHERS]
    assert agreement.images == len(OTHERS)
    assert agreement.value == np.mean([a.argmax() == b.argmax() for a, b in zip(got, want, strict=True)])
    difference = np.linalg.norm(np.stack(got) - np.stack(want)) / np.linalg.norm(want)
    assert agreement.error == pytest.approx(difference, rel=1e-3)


@pytest.mark.slow
def test_bundle_itself_is_left_as_it_was_and_time_bounds_the_images(tmp_path):
    bundle = planned(tmp_path / "b", {"cpu": "int8", "gpu": "fp16"})
    before = {file: file.read_bytes() for file in (tmp_path / "b").rglob("*") if file.is_file()}
    result = measure_files(bundle, Sequential(bundle.file(bundle.manifest.whole)).run, FITTED, OTHERS, seconds=0.0)
    assert (result.agreement.images, result.left, result.kept) == (1, len(OTHERS) - 1, {})
    assert before == {file: file.read_bytes() for file in (tmp_path / "b").rglob("*") if file.is_file()}


def test_subgraph_that_has_no_such_form_is_run_in_fp32_and_named(tmp_path):
    bundle = planned(tmp_path / "b", {"cpu": "fp16", "gpu": "fp32"})
    large = next(sub for sub in bundle.manifest.subgraphs if sub.processor == "cpu")
    model = onnx.load(bundle.file(large.file))
    weight = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 4)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1e7), weight.name))
    onnx.save(model, bundle.file(large.file))
    result = measure_files(bundle, Sequential(bundle.file(bundle.manifest.whole)).run, FITTED, OTHERS)
    assert result.kept.keys() == {large.name}
    assert "which fp16 does not hold" in result.kept[large.name]
    assert result.agreement.precisions["cpu"] == ("fp16", "fp32")
