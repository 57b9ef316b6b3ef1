"""Agreement of a branched network with its original and with labels, in torch and in files, with intervals."""

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
from stretch.evaluation.agreement import compare, share_of
from stretch.evaluation.files import measure_files
from stretch.evaluation.measure import evaluate, find_images
from stretch.export.precision import Acceptance, export_precision
from stretch.export.quantize.images import synthetic_images
from stretch.network.capture import capture
from stretch.network.capture.results import tensors
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from stretch.transform import build
from stretch.transform.calibrate import undivided_design
from tests.effort import examples
from tests.scheduler.bundles import two_branches
from tests.stretch.designs import cpu_and, identity_design, random_designs
from tests.stretch.several import form


def images(result, count=12, seed=0):
    """Images of four colours each: networks with random weights answer noise with a single class."""
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
        branched, expected = model(x), result.module(x)
    agreement, _ = compare(model, result, batches)
    assert agreement.value == pytest.approx(float((branched.argmax(1) == expected.argmax(1)).float().mean()))
    assert agreement.error == pytest.approx(float((branched - expected).norm() / expected.norm()), rel=1e-3, abs=1e-5)
    best = [[set(row.topk(5).indices.tolist()) for row in scores] for scores in (branched, expected)]
    assert agreement.top5_overlap == pytest.approx(sum(len(a & b) for a, b in zip(*best, strict=True)) / 5 / len(x))


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(st.data())
def test_segment_is_compared_alone_inside_the_original(captured, data):
    result = captured("tiny_resnet")
    design = data.draw(random_designs(result.graph))
    model = build(result, design).eval()
    batches = images(result)
    reference = build(result, undivided_design(result, design)).eval()
    mapping = {segment.segment: segment for segment in compare(model, result, batches)[0].segments}
    for part in design.segments:
        if join_of(part.join).widens or part.name not in mapping or mapping[part.name].error is None:
            continue
        with torch.no_grad():
            x = torch.cat(batches)
            want = result.module(x)
            for other in design.segments:
                x = (model if other is part else reference).get_submodule(other.name)(x)
        assert mapping[part.name].value == pytest.approx(float((x.argmax(1) == want.argmax(1)).float().mean()))
        assert mapping[part.name].error == pytest.approx(float((x - want).norm() / want.norm()), rel=1e-3, abs=1e-5)


def test_segment_with_another_number_of_output_channels_is_not_compared_alone(captured):
    result = captured("tiny_resnet")
    design = cpu_and("gpu", result.graph, "concat")
    alone = {item.segment: (item.error, item.value) for item in compare(build(result, design), result, images(result))[0].segments}
    assert {alone[part.name] for part in design.segments if join_of(part.join).widens} == {(None, None)}


def test_outputs_without_classes_are_compared_by_their_error():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 1)).eval()
    captured = capture(net, (1, 3, 8, 8), "map")
    agreement, classes = compare(build(captured, identity_design(captured.graph)), captured, images(captured))
    assert (agreement.value, agreement.low, agreement.top5_overlap, agreement.classes, classes) == (*[None] * 4, {})
    assert agreement.error < 1e-5


@pytest.mark.parametrize(("others", "arguments"), [(1, False), (3, True)])
def test_agreement_is_given_only_if_the_original_answers_several_classes(captured, others, arguments):
    result = captured("tiny_resnet")
    all_images = torch.cat(images(result))
    with torch.no_grad():
        best = result.module(all_images).argmax(1)
    one, other = (all_images[best == value] for value in best.unique()[:2])
    batch = torch.cat([one[:1].expand(20 - others, -1, -1, -1), other[:1].expand(others, -1, -1, -1)])
    agreement, classes = compare(build(result, identity_design(result.graph)), result, [batch])
    assert sorted(classes.values()) == [others, 20 - others]
    assert (agreement.value, agreement.classes) == (1.0 if arguments else None, 2)
    assert agreement.error < 1e-5


def test_output_that_is_not_finite_is_refused(captured):
    result = captured("tiny_resnet")
    model = build(result, identity_design(result.graph))
    with torch.no_grad():
        next(iter(reversed(list(model.parameters())))).fill_(float("nan"))
    with pytest.raises(StretchError, match="NaN or infinity"):
        compare(model, result, images(result))


def test_several_outputs_count_equally_and_have_no_class():
    captured = capture(*form("pyramid"), "pyramid")
    config = PlanConfig(processors=("cpu", "gpu"), alpha=1e3, beta=1e3, balance=1e-3, macs=(0.4, 2.0), segment_macs=0.1)
    model = build(captured, plan(captured.graph, load_device("mi9"), config).design)
    images = [torch.randn(3, 3, 16, 16), torch.randn(2, 3, 16, 16)]
    agreement = compare(model, captured, images)[0]
    assert (agreement.value, agreement.images) == (None, 5)
    squares = []
    with torch.no_grad():
        for batch in images:
            pairs = zip(tensors(model(batch)), tensors(captured.module(batch)), strict=True)
            squares += [len(batch) * float((a - b).square().sum() / b.square().sum()) for a, b in pairs]
    count = len(captured.graph.outputs)
    assert agreement.error == pytest.approx((sum(squares) / (5 * count)) ** 0.5, rel=1e-4)
    same = build(captured, undivided_design(captured, model.design))
    assert compare(same, captured, images)[0].error == pytest.approx(0.0, abs=1e-5)


IMAGES = synthetic_images((1, 3, 8, 8), 30)
FITTED, OTHERS = IMAGES[:16], IMAGES[16:]


def planned(folder, precision):
    """A bundle whose plan has a precision for each processor."""
    two_branches(folder, processors=tuple(precision))
    bundle = load_bundle(folder)
    entries = tuple(msgspec.structs.replace(s, planned_precision=precision[s.processor]) for s in bundle.manifest.subgraphs)
    (folder / "bundle.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(bundle.manifest, subgraphs=entries)))
    return load_bundle(folder)


@pytest.mark.slow
def test_measured_agreement_is_that_of_the_exported_bundle(tmp_path):
    precision = {"cpu": "int8", "gpu": "fp16"}
    bundle = planned(tmp_path / "b", precision)
    original = Sequential(bundle.file(bundle.manifest.whole)).run
    agreement = measure_files(bundle, lambda x: original(x) + 1, FITTED, OTHERS)[0]
    assert agreement.precisions == {name: (current,) for name, current in precision.items()}
    assert agreement.delegates == dict.fromkeys(precision, "cpu")
    export_precision(bundle, tmp_path / "lower", precision, FITTED, "synthetic", Acceptance(0.5))
    bundle = load_bundle(tmp_path / "lower")
    with Session(bundle, dict.fromkeys(precision, "cpu0")) as session:
        got = [session.run(x) for x in OTHERS]
    want = [original(x) + 1 for x in OTHERS]
    assert agreement.images == len(OTHERS)
    assert agreement.value == np.mean([a.argmax() == b.argmax() for a, b in zip(got, want, strict=True)])
    difference = np.linalg.norm(np.stack(got) - np.stack(want)) / np.linalg.norm(want)
    assert agreement.error == pytest.approx(difference, rel=1e-3)


@pytest.mark.slow
def test_bundle_stays_unchanged_and_a_time_limit_bounds_the_images(tmp_path):
    bundle = planned(tmp_path / "b", {"cpu": "int8", "gpu": "fp16"})
    before = {file: file.read_bytes() for file in (tmp_path / "b").rglob("*") if file.is_file()}
    agreement, kept, left = measure_files(bundle, Sequential(bundle.file(bundle.manifest.whole)).run, FITTED, OTHERS, seconds=0.0)
    assert (agreement.images, left, kept) == (1, len(OTHERS) - 1, {})
    assert before == {file: file.read_bytes() for file in (tmp_path / "b").rglob("*") if file.is_file()}


def test_subgraph_without_a_form_in_the_precision_runs_in_fp32_and_is_named(tmp_path):
    bundle = planned(tmp_path / "b", {"cpu": "fp16", "gpu": "fp32"})
    large = next(sub for sub in bundle.manifest.subgraphs if sub.processor == "cpu")
    model = onnx.load(bundle.file(large.file))
    weight = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 4)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1e7), weight.name))
    onnx.save(model, bundle.file(large.file))
    agreement, kept, _ = measure_files(bundle, Sequential(bundle.file(bundle.manifest.whole)).run, FITTED, OTHERS)
    assert kept.keys() == {large.name}
    assert "which fp16 does not hold" in kept[large.name]
    assert agreement.precisions["cpu"] == ("fp16", "fp32")


def agreement_of(scores, originals, labels):
    """Return the agreement, as dictionaries, of scores that are looked up by the image's number."""
    images = [(str(i), np.array([i]), label) for i, label in enumerate(labels)]
    original = None if originals is None else lambda x: originals[int(x[0])][None]
    evaluation = evaluate(lambda x: scores[int(x[0])][None], original, images, scores.shape[1])
    compared = {name: getattr(evaluation, name) for name in ("original", "agreement", "top5_overlap", "error")}
    return msgspec.to_builtins(evaluation.branched) | msgspec.to_builtins(compared)


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(6, 12))
def test_shares_are_those_of_sorted_scores(seed, count, classes):
    rng = np.random.default_rng(seed)
    scores, originals = rng.standard_normal((2, count, classes))
    labels = rng.integers(0, classes, count)
    run_result = agreement_of(scores, originals, [int(label) for label in labels])
    assert run_result["error"] == pytest.approx(np.linalg.norm(scores - originals) / np.linalg.norm(originals))
    best, original_best = np.argsort(scores)[:, ::-1][:, :5], np.argsort(originals)[:, ::-1][:, :5]
    assert run_result["top1"]["value"] == pytest.approx(np.mean(scores.argmax(1) == labels))
    assert run_result["top5"]["value"] == pytest.approx(np.mean((best == labels[:, None]).any(1)))
    assert run_result["original"]["top1"]["value"] == pytest.approx(np.mean(originals.argmax(1) == labels))
    assert run_result["original"]["top5"]["value"] == pytest.approx(np.mean((original_best == labels[:, None]).any(1)))
    if np.bincount(originals.argmax(1)).max() >= 0.9 * count:
        assert (run_result["agreement"], run_result["top5_overlap"]) == (None, None)
        return
    assert run_result["agreement"]["value"] == pytest.approx(np.mean(scores.argmax(1) == originals.argmax(1)))
    overlap = [len(np.intersect1d(a, b)) / 5 for a, b in zip(best, original_best, strict=True)]
    assert run_result["top5_overlap"]["value"] == pytest.approx(np.mean(overlap))


def test_top5_of_five_classes_is_not_given():
    run_result = agreement_of(np.eye(5), np.eye(5), [0, 1, 2, 3, 4])
    assert run_result["top1"]["value"] == 1.0
    assert (run_result["top5"], run_result["top5_overlap"], run_result["original"]["top5"]) == (None, None, None)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("of", ["the bundle", "the original"])
def test_output_of_nan_is_refused_with_the_image(value, of):
    right, wrong = np.eye(6), np.where(np.arange(6)[:, None] == 3, value, np.eye(6))
    scores = (wrong, right) if of == "the bundle" else (right, wrong)
    with pytest.raises(StretchError, match=f"output of {of} for 3 contains NaN or infinity"):
        agreement_of(*scores, [0] * 6)


@pytest.mark.parametrize(("right", "images"), [(0, 1), (20, 20), (3, 10), (49_998, 50_000)])
def test_interval_is_that_of_scipy(right, images):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(right, images).proportion_ci(method="wilson")
    share = share_of(right, images)
    assert (share.low, share.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


ARRAY = np.zeros((3, 2, 2), np.float32)


def folder(path, names):
    for name in names:
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, ARRAY)
    return path


def labels(result, path):
    return {file.relative_to(path).as_posix(): label for file, label in result.files}


@pytest.mark.parametrize(
    ("names", "outputs", "listed", "expected"),
    [
        # folders are classes in the order of their names
        (["dog/1.npy", "cat/1.npy", "cat/deep/2.npy", "ape/1.npy"], 3, None, [2, 1, 1, 0]),
        # names that are numbers are the classes, whatever their order as text
        (["10/a.npy", "9/a.npy", "007/a.npy"], 1000, None, [10, 9, 7]),
        # a file states the names of the classes
        (["dog/1.npy", "ape/1.npy"], 4, "cat\ndog\n\n  ape \ncow\n", [1, 2]),
    ],
    ids=["names", "numbers", "listed"],
)
def test_folder_of_an_image_states_its_class(tmp_path, names, outputs, listed, expected):
    path = folder(tmp_path / "images", names)
    (tmp_path / "names.txt").write_text(listed or "")
    images = find_images(path, outputs, *([tmp_path / "names.txt"] if listed else []))
    assert (labels(images, path), images.labels) == (dict(zip(names, expected, strict=True)), "folders")
    assert "cat/1.npy" not in names or images.classes == {0: "ape", 1: "cat", 2: "dog"}


@pytest.mark.parametrize(("name", "comma"), [("t.csv", ","), ("t.tsv", "\t"), ("T.CSV", ",")])
@pytest.mark.parametrize("heading", [True, False])
def test_table_names_files_next_to_it(tmp_path, name, comma, heading):
    folder(tmp_path, ["x/a.npy", "b.npy"])
    rows = [["file", "label"]] * heading + [["x/a.npy", "1"], ["b.npy", "0"]]
    (tmp_path / name).write_text("".join(comma.join(row) + "\n" for row in rows))
    images = find_images(tmp_path / name, 2)
    assert (labels(images, tmp_path), images.labels) == ({"x/a.npy": 1, "b.npy": 0}, "table")


@pytest.mark.parametrize(("names", "labelled"), [(["a.npy", "b.npy"], True), (["x/a.npy", "b.npy"], False)])
def test_folder_without_subfolders_or_with_labels_turned_off_has_no_labels(tmp_path, names, labelled):
    images = find_images(folder(tmp_path, names), 10, labelled=labelled)
    assert (images.labels, [label for _, label in images.files]) == ("none", [None, None])


def test_limit_is_spread_over_the_classes(tmp_path):
    images = find_images(folder(tmp_path, [f"{c}/{i:02}.npy" for c in range(4) for i in range(25)]), 4)
    assert [label for _, label in images.spread(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert images.spread(None) == images.spread(1000) == images.files


@pytest.mark.parametrize(
    ("names", "outputs", "table", "sentence"),
    [
        ([], 3, None, "has no images"),
        (["a/1.npy", "b/1.npy"], 3, None, "has 2 classes and the network 3 outputs"),
        (["1/1.npy", "2/1.npy", "3/1.npy"], 3, None, "class `3` of .* is no output of the network, which are numbered 0 to 2"),
        (["a/1.npy", "b.npy"], 2, None, "b.npy is in no class folder"),
        (["a.npy", "b.npy"], 3, "a.npy\n", "row 1 of .* is not a file and a label"),
        (["a.npy", "b.npy"], 3, "a.npy,0\nb.npy,1,2\n", "row 2 of .* is not a file and a label"),
        (["a.npy", "b.npy"], 3, "file,label\nnowhere.npy,0\n", "row 1 of .* names .*nowhere.npy, which is no file"),
        (["a.npy", "b.npy"], 3, "", "has no images"),
        (["a.npy", "b.npy"], 3, "a.npy,\n", "is not a file and a label"),
    ],
)
def test_classes_and_tables_that_do_not_fit_the_network_are_refused_in_one_sentence(tmp_path, names, outputs, table, sentence):
    path = folder(tmp_path / "images", names)
    path.mkdir(exist_ok=True)
    if table is not None:
        path = path / "t.csv"
        path.write_text(table)
    with pytest.raises(StretchError, match=sentence) as caught:
        find_images(path, outputs)
    assert table is not None or caught.value.hint
