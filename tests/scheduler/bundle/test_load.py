"""Loading bundles from untrusted folders, and what manifest and TFLite file state in addition to the graph."""

import contextlib
import copy
import os
import shutil

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import external_data_helper

from predictors.errors import StretchError, UsageError
from scheduler.bundle.load import load_bundle
from scheduler.bundle.lock import OpenFolder, exclusive_lock
from scheduler.bundle.manifest import Manifest, SubgraphEntry
from scheduler.bundle.preprocessing import IMAGENET, Preprocessing, requested_preprocessing
from scheduler.bundle.problems import graph_problems
from scheduler.bundle.rows import cut, cut_shape, rows_read_by, rows_read_once
from scheduler.bundle.statements import statement_problems
from scheduler.bundle.tflite_file import METADATA, check_same_plan, load_tflite, parse_tflite
from scheduler.checks.verify import verify_bundle
from stretch.export.tflite import write_tflite
from tests.corpus import mutations
from tests.scheduler.bundles import edit, two_branches
from tests.scheduler.delegates import graphs
from tests.scheduler.formats.onnx.test_files import endless_loop
from tests.scheduler.tflite_files import changed, small_source


def edited(change):
    """A change of a bundle folder: `change` edits the manifest as plain data."""
    return lambda folder: edit(folder, change)


RUN = {
    "value": 0.8, "low": 0.7, "high": 0.9, "top5_overlap": None, "error": 0.2, "images": 20,
    "precisions": {"cpu": ["int8"], "gpu": ["fp16", "fp32"]}, "delegates": {"cpu": "cpu", "gpu": "opencl"},
}  # fmt: skip
MEASURED = {
    "value": 0.9, "low": 0.8, "high": 0.95, "top5_overlap": None, "error": 0.1, "images": 40,
    "segments": [{"segment": "s1", "value": None, "error": None}],
}  # fmt: skip


def stating(**more):
    """A change of keys of the manifest, or of its `model` for `preprocessing`."""
    return edited(lambda m: (m["model"] if "preprocessing" in more else m).update(more))


def older(manifest):
    manifest.update(schema=1, input="x", output="y")
    del manifest["inputs"], manifest["outputs"]


def with_manifest(text):
    """A change that replaces the manifest by bytes."""
    return lambda folder: (folder / "bundle.json").write_bytes(text)


def with_file(name):
    """A change of the path of the stem's file in the manifest."""

    def change(manifest):
        manifest["files"][name] = manifest["files"]["stem.onnx"]
        manifest["subgraphs"][0]["file"] = name

    return edited(change)


def in_place_of(name, make):
    def change(folder):
        (folder / name).unlink()
        make(folder / name)

    return change


def linked_out(folder):
    """Move a file out of the folder and link to it."""
    outside = shutil.move(folder / "stem.onnx", folder.parent / "outside.onnx")
    (folder / "stem.onnx").symlink_to(outside)


def flipped(folder):
    """Flip one bit of a file without changing its size."""
    data = bytearray((folder / "head.onnx").read_bytes())
    data[-20] ^= 1
    (folder / "head.onnx").write_bytes(data)


def garbage(folder):
    (folder / "stem.onnx").write_bytes(b"\x00garbage")
    mutations.hashed(folder, "stem.onnx")


def other_end(proto):
    proto.graph.node[-1].output[0] = proto.graph.output[0].name = "other"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # content that is no manifest
        *((with_manifest(text), "bundle") for text in (b"", b"{", b"[]", b"null", b'{"schema": 2}', b'{"schema": "one"}', b"[" * 100_000)),
        *(
            (with_manifest(text), message)
            for text, message in ((b'{"schema": 0}', "bundle"), (b"\xff", "bundle"), (b" " * 2**25, "is larger than"))
        ),
        (edited(older), "schema 1.*stretch export"),
        (stating(schema=99, wings=2), "schema 99"),
        (edited(lambda m: m["files"].pop("model.onnx")), "`model.onnx`.*size and hash"),
        (edited(lambda m: m.update(tflite="model.tflite")), "`model.tflite`.*size and hash"),
        (edited(lambda m: m.update(aot={"sm8450": "aot/a.tflite"})), "`aot/a.tflite`.*size and hash"),
        (edited(lambda m: m["joins"][0].update(inputs=["s1.cpu.y", "nowhere"])), "`s1.join`.*`nowhere`"),
        (in_place_of("s1.gpu.onnx", os.mkdir), "not a file"),
        (in_place_of("bundle.json", os.mkfifo), "not a file"),
        *(
            (with_file(name), "inside the bundle")
            for name in ("../x.onnx", "/etc/passwd", "a/../../x", "C:x", "a\\..\\b", "", ".", "/", "a\0b")
        ),
        (linked_out, "out of the bundle"),
        (flipped, "SHA-256"),
        (garbage, "no ONNX model"),
        *((lambda folder, at=at: external(folder, at), "file of the bundle") for at in ("stem.data", "../stem.data", "/etc/hostname")),
        *(
            (lambda folder, name=name: rewrite(folder, name, lambda proto: endless_loop()), f"{name}.*`Loop_0`")
            for name in ("stem.onnx", "model.onnx", "controls/original.onnx")
        ),
        (lambda folder: rewrite(folder, "head.onnx", other_end), r"head\.onnx.*`other` \[1, 5\].*`y` \[1, 5\]"),
        # shares out of range, and a run in an unknown precision
        *((stating(agreement=MEASURED | wrong), "agreement") for wrong in ({"value": 1.5}, {"low": -0.1}, {"images": 0}, {"error": "nan"})),
        *((stating(agreement=MEASURED | wrong), "agreement") for wrong in ({"source": "guessed"}, {"more": 1})),
        *(
            (stating(agreement=MEASURED | {"bundle": RUN | wrong}), "agreement")
            for wrong in ({"value": -1}, {"images": 0}, {"precisions": {"cpu": ["int7"]}}, {"more": 1})
        ),
        *((stating(preprocessing={"mean": mean}), "preprocessing") for mean in ([0.5, 0.5], [0.5, 1e300, 0.5])),
        *((stating(preprocessing={"crop": crop}), "preprocessing") for crop in (0, 1.5)),
        *((stating(preprocessing={"size": size}), "preprocessing") for size in (0, 10**9)),
        *(
            (stating(preprocessing=wrong), "preprocessing")
            for wrong in (
                {"std": [0.5, 0, 0.5]},
                {"interpolation": "nearly"},
                {"channels": "yuv"},
                {"range": 1023},
                {"crops": 1},
                "imagenet",
            )
        ),
    ],
)
def test_folder_that_contradicts_its_manifest_is_refused_before_anything_runs(bundle_dir, change, message):
    change(bundle_dir)
    with pytest.raises(StretchError, match=message):
        load_bundle(bundle_dir, check_hashes=change is flipped)


def rewrite(folder, name, change):
    """Change an ONNX file of a bundle and state its new size and hash."""
    proto = onnx.load(folder / name)
    proto = change(proto) or proto
    (folder / name).write_bytes(proto.SerializeToString())
    mutations.hashed(folder, name)


def external(bundle_dir, location):
    """Move the stem's weights to ``stem.data``, and state `location` as their file."""

    def move(proto):
        weights = proto.graph.initializer[0]
        (bundle_dir / "stem.data").write_bytes(weights.raw_data)
        external_data_helper.set_external_data(weights, location)
        weights.ClearField("raw_data")
        weights.data_location = onnx.TensorProto.EXTERNAL

    rewrite(bundle_dir, "stem.onnx", move)


def test_external_weights_with_a_hash_and_a_link_inside_the_bundle_are_accepted(bundle_dir):
    external(bundle_dir, "stem.data")
    mutations.hashed(bundle_dir, "stem.data")
    assert load_bundle(bundle_dir, check_hashes=True)
    shutil.move(bundle_dir / "stem.onnx", bundle_dir / "real.onnx")
    (bundle_dir / "stem.onnx").symlink_to("real.onnx")
    assert load_bundle(bundle_dir, check_hashes=True)


def test_total_work_of_all_subgraphs_is_bounded(bundle_dir, monkeypatch):
    monkeypatch.setattr("scheduler.bundle.problems.MAX_WORK", 1000)
    with pytest.raises(StretchError, match=r"its subgraphs take .* multiply-accumulates"):
        load_bundle(bundle_dir)


def test_operator_with_compiled_code_is_accepted_only_in_a_stated_context_file(bundle_dir):
    (bundle_dir / "code.onnx").write_bytes((bundle_dir / "stem.onnx").read_bytes())
    edit(bundle_dir, lambda m: m.update(contexts={"sm8550": {"stem": "code.onnx"}}))

    def opaque(proto):
        proto.graph.node[0].op_type, proto.graph.node[0].domain = "EPContext", "com.microsoft"

    rewrite(bundle_dir, "code.onnx", opaque)
    assert load_bundle(bundle_dir, check_hashes=True)
    edit(bundle_dir, lambda m: m.update(contexts={}))
    with pytest.raises(StretchError, match="EPContext"):
        load_bundle(bundle_dir)


@pytest.mark.linux
def test_open_folder_stays_the_same_after_a_rename_and_is_locked_until_closed(tmp_path):
    def folder(text):
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "f").write_text(text)
        return tmp_path / "a"

    held = OpenFolder(folder("old"))
    with exclusive_lock(tmp_path / "a") as free:
        assert not free
    (tmp_path / "a").rename(tmp_path / "gone")
    folder("new")
    assert [(root / "f").read_text() for root in (held.root, tmp_path / "a")] == ["old", "new"]
    del held
    with exclusive_lock(tmp_path / "gone") as free:
        assert free
        with pytest.raises(StretchError, match="removed"):
            OpenFolder(tmp_path / "gone")


def tensor(data, name):
    return next(t for t in data["tensors"] if t["name"] == name)


@pytest.mark.parametrize(
    ("change", "message"),
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
        (lambda m: tensor(m, "s1.cpu.y").update(shape=[]), "joins tensors without channels"),
        (lambda m: tensor(m, "s1.cpu.y").update(shape=[1, 0, 8, 8]), "empty or too large"),
        (lambda m: tensor(m, "s1.cpu.y").update(shape=[1 << 20, 1 << 20]), "empty or too large"),
        (lambda m: tensor(m, "s2.cpu.y").update(shape=[1, 7, 8, 8]), "adds tensors of different shapes"),
        (lambda m: tensor(m, "s1.cpu.y").update(dtype="int8"), "differ in type or layout"),
        (lambda m: m["joins"][0].update(kind="glue"), "join `s1.join` meets by `glue`, known are concat, rows, sum"),
        # A join of designs but not of bundles: in a bundle, its convolutions are part of the branches.
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
        (lambda m: [tensor(m, name).update(layout="PHWC4") for name in ("s1.cpu.y", "s1.gpu.y", "t1")], "cannot be put side by side"),
        (lambda m: m["subgraphs"][0].update(inputs=["t2"]), "not in topological order"),
        (lambda m: m.update(inputs=[]), "the model reads no tensor"),
        (lambda m: m.update(outputs=[]), "the model writes no tensor"),
        (lambda m: m.update(inputs=["x", "x"]), "the model reads the tensor `x` twice"),
        (lambda m: m["subgraphs"][1].update(inputs=[]), "`s1.cpu` reads no tensor"),
        (lambda m: m["subgraphs"][1].update(outputs=["s1.cpu.y"] * 2), "`s1.cpu` writes the tensor `s1.cpu.y` twice"),
        (lambda m: m["subgraphs"][1].update(inputs=["t0", "x"]), "tensor `x` states the consumers stem and is read by s1.cpu, stem"),
        *((lambda m, names=names: m.update(results=names), "outputs are called") for names in (["total", "rest"], [""])),
        (lambda m: m.update(outputs=[*m["outputs"], "t0"], results=["y", "y"]), "outputs are called y, y"),
        (lambda m: m.update(outputs=["y", "t2"]), "tensor `t2` states the consumers head and is read by head, output"),
    ],
)
def test_each_inconsistency_of_the_manifest_is_described(stated, change, message):
    change(manifest := copy.deepcopy(stated))
    assert message in "\n".join(graph_problems(msgspec.convert(manifest, Manifest, strict=False)))


PREDICTED = {"makespan_ms": 2.0, "best_single_ms": 3.0, "best_single_processor": "gpu", "best_single_precision": "fp16", "speedup": 1.5}
PREDICTED |= {"sequential_same_macs_ms": None, "optimal": True, "gap": 0.0, "source": "predicted"}
CHECKS = {"tolerance": 1e-4, "max_error": 2e-6, "errors": {"model": 2e-6, "s1.cpu": 0.0, "original": 1e-7}, "reference": "torch 2"}


@pytest.fixture(scope="module")
def stated(tmp_path_factory):
    """A manifest as plain data, with predictions and checks."""
    data = msgspec.json.decode((two_branches(tmp_path_factory.mktemp("stated") / "b") / "bundle.json").read_bytes())
    return data | {"predicted": PREDICTED, "checks": CHECKS}


def problems_stated(data):
    return list(statement_problems(msgspec.convert(data, Manifest)))


def test_share_of_another_packages_division_and_a_moved_branch_are_no_problem(stated):
    data = copy.deepcopy(stated)
    data["design"]["segments"][1]["branches"][0]["cut_outs"] = [0, 8]
    data["subgraphs"][2]["processor"] = "cpu"
    assert problems_stated(data) == []


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("design",), {}, "`design` is not a design"),
        (("design",), {"garbage": 1}, "`design` is not a design"),
        (("design", "segments", 0, "branches"), [], "`design` is not a design"),
        (("design", "segments", 1, "branches", 0, "depth"), -1, "`design` is not a design"),
        (("design", "segments", 1, "branches", 0, "width"), "wide", "`design` is not a design"),
        (("design", "segments", 1, "branches", 0, "align"), -8, "`design.segments[1].branches[0].align` is -8"),
        (("design", "version"), 2, "`design` is not a design"),
        (("design", "segments"), [], "has the segments"),
        (("design", "segments", 1, "name"), "s9", "the subgraphs are of stem, s1, s2, head"),
        (("design", "segments", 1, "branches", 0, "processor"), "npu", "branches on npu, gpu in segment `s1`"),
        (("design", "segments", 1, "branches", 1, "processor"), "cpu", "branches on cpu, cpu in segment `s1`"),
        (("design", "segments", 2, "join"), "concat", "joins segment `s2` by concat, the bundle has sum there"),
        (("predicted",), {"garbage": 1}, "no `makespan_ms`"),
        (("predicted", "makespan_ms"), "soon", "`predicted.makespan_ms` is `soon`"),
        (("predicted", "makespan_ms"), -1, "`predicted.makespan_ms` is -1"),
        (("predicted", "communication_ms"), 10**400, "`predicted.communication_ms`"),
        (("predicted", "speedup"), 99.0, "`predicted.speedup` is 99.0"),
        (("predicted", "speedup"), None, "`predicted.speedup` is None"),
        (("predicted", "best_single_precision"), "fp128", "`predicted.best_single_precision` is `fp128`"),
        (("predicted", "source"), "measured", "`predicted.source` is `measured`"),
        (("predicted", "note"), "garbage", "`predicted.note` is `garbage`"),
        (("checks",), {"garbage": 1}, "`checks.garbage` is no table"),
        (("checks",), {"max_error": 0}, "no `tolerance`"),
        (("checks", "tolerance"), 0, "no `tolerance`"),
        (("checks", "reference"), 3, "`reference`"),
        (("checks", "errors"), {}, "`checks.errors` is not"),
        (("checks", "errors"), "none", "`checks.errors` is not"),
        (("checks", "errors", "model"), -1, "`checks.errors.model` is -1|`checks.errors` is not"),
        (("checks", "errors", "model"), True, "`checks.errors` is not"),
        (("checks", "errors", "s7.cpu"), 0.0, "`checks.errors` has `s7.cpu`"),
        (("checks", "max_error"), 0.0, "`checks.max_error` is 0.0, and not the largest"),
        (("checks", "tolerance"), 1e-9, "`checks.tolerance` allows 1e-09"),
        (("checks", "precision"), "fine", "`checks.precision` is no table"),
        (("checks", "rounding"), {"y": 0.2}, "`checks.rounding` states an error above 0.01"),
    ],
)
def test_impossible_statement_of_the_manifest_is_a_problem(stated, path, value, problem):
    parent = data = copy.deepcopy(stated)
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    found = "\n".join(problems_stated(data))
    assert any(part in found for part in problem.split("|")), found


#: Sides of images with aspect ratios up to 1:10; larger images may be too large after the resize.
SIDES = st.integers(200, 2000)


@given(width=SIDES, height=SIDES, wide=st.integers(1, 400), high=st.integers(1, 400), crop=st.floats(0.5, 1), squash=st.booleans())
def test_resized_image_is_never_smaller_than_the_crop(width, height, wide, high, crop, squash):
    preprocessing = msgspec.structs.replace(IMAGENET, crop=crop, squash=squash)
    assert (np.array(preprocessing.resized_size(width, height, (wide, high))) >= (wide, high)).all()


@pytest.mark.parametrize(
    ("preprocessing", "picture", "resized"),
    [
        (Preprocessing(), (500, 400), (320, 256)),
        (Preprocessing(crop=224 / 232), (400, 500), (232, 290)),
        (Preprocessing(crop=224 / 248, squash=True), (500, 400), (248, 248)),
        (Preprocessing(size=300), (500, 400), (375, 300)),
        # too small for the model, or too large for memory
        (Preprocessing(size=200), (500, 400), "shorter side of 200"),
        (Preprocessing(size=16384), (20_000, 1_000), "too large"),
        (Preprocessing(crop=0.01), (20_000, 1_000), "too large"),
    ],
)
def test_image_is_resized_to_the_expected_size_or_refused(preprocessing, picture, resized):
    with pytest.raises(StretchError, match=resized) if isinstance(resized, str) else contextlib.nullcontext():
        assert preprocessing.resized_size(*picture, (224, 224)) == resized


def prepared(folder, value):
    """A bundle with a stated preprocessing."""
    bundle = two_branches(folder / "bundle")
    edit(bundle, lambda m: m["model"].update(preprocessing=value))
    return bundle


def test_bundle_keeps_its_preprocessing_and_an_older_bundle_without_one_loads(tmp_path):
    preprocessing = Preprocessing((0.5, 0.4, 0.3), (0.1, 0.2, 0.3), 0.9, interpolation="bicubic", channels="bgr", range=255)
    bundle = prepared(tmp_path, msgspec.to_builtins(preprocessing))
    assert load_bundle(bundle).manifest.model.preprocessing == preprocessing
    assert verify_bundle(bundle).ok
    [problem] = verify_bundle(prepared(tmp_path / "small", {"size": 3})).problems
    assert "to 3, the model reads 8×8" in problem
    assert load_bundle(two_branches(tmp_path / "older")).manifest.model.preprocessing is None


@pytest.mark.parametrize(
    ("requested", "shape", "message"),
    [
        ({"men": [0, 0, 0]}, (1, 3, 8, 8), "cannot be used: .*`men`"),
        ({"std": [0, 1, 1]}, (1, 3, 8, 8), r"cannot be used: .*\$\.std"),
        (Preprocessing(std=(0, 1, 1)), (1, 3, 8, 8), r"cannot be used: .*\$\.std"),
        ("bicubic", (1, 3, 8, 8), "cannot be used"),
        (3, (1, 3, 8, 8), "cannot be used"),
        ({"size": 7}, (1, 3, 8, 8), "resizes pictures to 7, the model reads 8×8"),
        ({"crop": 0.5}, (1, 1, 8, 8), r"is one of colour pictures, the model reads \[1, 1, 8, 8\]"),
    ],
)
def test_invalid_request_for_preprocessing_is_a_usage_error(requested, shape, message):
    with pytest.raises(UsageError, match=message):
        requested_preprocessing(IMAGENET, requested, shape)


@pytest.mark.parametrize(("layout", "shape", "axis"), [("NCHW", (2, 3, 8, 4), 2), ("NHWC", (2, 8, 4, 3), 1)])
def test_rows_are_cut_along_the_axis_of_the_layout(layout, shape, axis):
    x = np.arange(np.prod(shape)).reshape(shape)
    result = cut(x, (2, 5), layout)
    assert result.shape == cut_shape(shape, (2, 5), layout)
    assert np.array_equal(result, np.take(x, range(2, 5), axis))
    assert np.shares_memory(result, x)
    assert cut(x, None) is x
    assert cut_shape(shape, None) == shape


def test_subgraph_reads_contiguous_rows_in_the_order_of_its_inputs():
    def entry(inputs, rows):
        return SubgraphEntry("s", "s", "cpu", "s.onnx", inputs, ("y",), 0, rows)

    tensors = {"a": np.arange(24.0).reshape(1, 3, 4, 2), "b": np.ones((1, 2))}
    b, a = rows_read_by(entry(("b", "a"), {"a": (1, 3)}), tensors)
    assert (a.shape, a.flags.c_contiguous, b.shape) == ((1, 3, 2, 2), True, (1, 2))
    assert np.array_equal(a, tensors["a"][:, :, 1:3])
    assert np.array_equal(rows_read_once(entry(("a",), {"a": (1, 3)}), tensors), a)
    with pytest.raises(StretchError, match=r"\(b, a\)"):
        rows_read_once(entry(("b", "a"), {}), tensors)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return load_bundle(two_branches(tmp_path_factory.mktemp("bundle") / "bundle"))


@pytest.fixture(scope="module")
def tflite_file(bundle):
    return write_tflite(bundle)


def test_tflite_signatures_are_the_bundles_subgraphs_and_joins_in_nhwc_without_transpositions(bundle, tflite_file, tmp_path):
    (tmp_path / "m.tflite").write_bytes(tflite_file)
    file, manifest = load_tflite(tmp_path / "m.tflite"), bundle.manifest
    shapes = {t.name: t.shape for t in manifest.tensors}
    for sub in manifest.subgraphs:
        inputs, outputs = file.ends(sub.name)
        n, c, h, w = shapes[sub.input]
        assert (inputs, list(outputs)) == ({sub.input: (n, h, w, c)}, [sub.output])
    for join in manifest.joins:
        assert tuple(file.ends(join.name)[0]) == join.inputs
    check_same_plan(file, manifest)
    assert {t.layout for t in file.plan.tensors} == {"NHWC", "NC"}
    codes = {step.name: [code for _, code in file.operators(step.name)] for step in (*manifest.subgraphs, *manifest.joins)}
    assert (codes.pop("s1.join"), codes.pop("s2.join")) == (["CONCATENATION"], ["ADD"])
    assert not any("TRANSPOSE" in operators for operators in codes.values())


def test_tflite_file_without_plan_or_of_another_bundle_or_plan_is_refused(tflite_file, bundle, tmp_path):
    source = small_source(tmp_path)

    def spoil_plan(model):
        entry = next(item for item in model["metadata"] if item["name"] == METADATA)
        model["buffers"][entry["buffer"]] = {"data": np.frombuffer(b"{}", np.uint8)}

    def written(**changes):
        return graphs.tflite_bytes(source.graph, source, msgspec.structs.replace(graphs.plan_of(source.graph), **changes))

    content = graphs.tflite_bytes(source.graph, source)
    moved = [msgspec.structs.replace(t, shape=(1, 4, 4, 3)) if t.name == "x" else t for t in graphs.plan_of(source.graph).tensors]
    for data, message in (
        (changed(content, lambda model: model.pop("metadata")), "no plan"),
        (changed(content, spoil_plan), "damaged"),
        (written(schema=99), "schema 99"),
        (graphs.tflite_bytes(source.graph, source, graphs.plan_of(source.graph, "other")), "not the subgraphs and joins"),
        (written(tensors=tuple(moved)), "the tensors that its plan states"),
    ):
        with pytest.raises(StretchError, match=message):
            parse_tflite(data, tmp_path)
    file = parse_tflite(tflite_file, tmp_path)
    with pytest.raises(StretchError, match="no signature `s9`") as error:
        file.ends("s9")
    assert "s1.gpu" in error.value.hint
    with pytest.raises(StretchError, match="another bundle"):
        check_same_plan(file, load_bundle(two_branches(tmp_path / "other", processors=("cpu", "dsp"))).manifest)
