"""Bundles as they are read, from a folder that nobody vouches for."""

import os
import shutil

import msgspec
import onnx
import pytest
from onnx import external_data_helper

from predictors.errors import StretchError
from scheduler.bundle.load import MAX_MANIFEST_BYTES, Held, graph_problems, inside, load_bundle, unused
from scheduler.bundle.manifest import Manifest
from tests.corpus import mutations
from tests.scheduler.formats.onnx.test_checks import endless_loop


def test_newer_schema_asks_to_upgrade_even_if_it_has_unknown_keys(bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: m.update(schema=99, wings=2))
    with pytest.raises(StretchError, match="schema 99, this nn-stretch reads up to 2") as error:
        load_bundle(bundle_dir)
    assert "upgrade" in error.value.hint


def test_older_schema_says_how_to_make_the_bundle_anew(bundles, bundle_dir):
    def older(manifest):
        manifest.update(schema=1, input="x", output="y")
        del manifest["inputs"], manifest["outputs"]

    bundles.edit(bundle_dir, older)
    with pytest.raises(
        StretchError, match=r"schema 1, which .* does not read: make the bundle anew, with `stretch branch` or `stretch export`"
    ):
        load_bundle(bundle_dir)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b'{"schema": 2}', b'{"schema": "one"}', b'{"schema": 0}', b"\xff\xfe", b"[" * 100_000]
)
def test_damaged_manifest_is_one_error(bundle_dir, text):
    (bundle_dir / "bundle.json").write_bytes(text)
    with pytest.raises(StretchError):
        load_bundle(bundle_dir)


def test_manifest_above_the_size_limit_is_not_parsed(bundle_dir):
    (bundle_dir / "bundle.json").write_bytes(b" " * (MAX_MANIFEST_BYTES + 1))
    with pytest.raises(StretchError, match="is larger than"):
        load_bundle(bundle_dir)


@pytest.mark.parametrize("name", ["../x.onnx", "/etc/passwd", "a/../../x", "C:x", "a\\..\\b", "", ".", "/", "a\0b"])
def test_path_that_is_not_inside_is_refused(bundles, bundle_dir, name):
    def change(manifest):
        manifest["files"][name] = manifest["files"]["stem.onnx"]
        manifest["subgraphs"][0]["file"] = name

    bundles.edit(bundle_dir, change)
    with pytest.raises(StretchError, match="not inside the bundle"):
        load_bundle(bundle_dir)


def test_link_out_of_the_bundle_is_refused_even_if_the_content_is_right(bundle_dir, tmp_path):
    outside = tmp_path / "outside.onnx"
    shutil.move(bundle_dir / "stem.onnx", outside)
    (bundle_dir / "stem.onnx").symlink_to(outside)
    with pytest.raises(StretchError, match="leads out of the bundle"):
        load_bundle(bundle_dir)


def test_link_that_stays_inside_is_followed(bundle_dir):
    shutil.move(bundle_dir / "stem.onnx", bundle_dir / "real.onnx")
    (bundle_dir / "stem.onnx").symlink_to("real.onnx")
    assert load_bundle(bundle_dir, check_hashes=True)


def test_folder_in_place_of_a_file_is_refused(bundle_dir):
    (bundle_dir / "s1.gpu.onnx").unlink()
    (bundle_dir / "s1.gpu.onnx").mkdir()
    with pytest.raises(StretchError, match="is not a file"):
        load_bundle(bundle_dir)


def test_edited_file_of_equal_size_is_refused_by_its_hash(bundle_dir):
    file = bundle_dir / "head.onnx"
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    with pytest.raises(StretchError, match="SHA-256 differs"):
        load_bundle(bundle_dir, check_hashes=True)


def test_pipe_in_place_of_the_manifest_is_refused_without_reading_it(bundle_dir):
    (bundle_dir / "bundle.json").unlink()
    os.mkfifo(bundle_dir / "bundle.json")
    with pytest.raises(StretchError, match="is not a file"):
        load_bundle(bundle_dir)


def test_file_that_is_used_without_a_hash_is_refused(bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: m["files"].pop("model.onnx"))
    with pytest.raises(StretchError, match="without stating its size and hash"):
        load_bundle(bundle_dir)


def test_file_that_is_no_onnx_model_is_refused(bundle_dir):
    (bundle_dir / "stem.onnx").write_bytes(b"\x00garbage")
    mutations.hashed(bundle_dir, "stem.onnx")
    with pytest.raises(StretchError, match="is no ONNX model"):
        load_bundle(bundle_dir)


def rewrite(folder, name, change):
    """Change an ONNX file of a bundle and state its new size and hash."""
    proto = onnx.load(folder / name)
    proto = change(proto) or proto
    (folder / name).write_bytes(proto.SerializeToString())
    mutations.hashed(folder, name)


def external(bundle_dir, location):
    """Move the stem's weights into a file of their own, ``stem.data``, and say that they are at a location."""

    def move(proto):
        weights = proto.graph.initializer[0]
        (bundle_dir / "stem.data").write_bytes(weights.raw_data)
        external_data_helper.set_external_data(weights, location)
        weights.ClearField("raw_data")
        weights.data_location = onnx.TensorProto.EXTERNAL

    rewrite(bundle_dir, "stem.onnx", move)


@pytest.mark.parametrize("location", ["stem.data", "../stem.data", "/etc/hostname"])
def test_weights_outside_of_the_hashed_files_are_refused(bundle_dir, location):
    external(bundle_dir, location)
    with pytest.raises(StretchError, match="not a file of the bundle"):
        load_bundle(bundle_dir)


def test_weights_in_a_hashed_file_of_the_bundle_are_accepted(bundle_dir):
    external(bundle_dir, "stem.data")
    mutations.hashed(bundle_dir, "stem.data")
    assert load_bundle(bundle_dir, check_hashes=True)


def test_graph_problem_names_the_manifest(bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: m["joins"][0].update(inputs=["s1.cpu.y", "nowhere"]))
    with pytest.raises(StretchError, match=r"bundle\.json: `s1\.join` uses the tensor `nowhere`"):
        load_bundle(bundle_dir)


def test_tflite_file_must_be_one_of_the_hashed_files(bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: m.update(tflite="model.tflite"))
    with pytest.raises(StretchError, match=r"uses the file `model\.tflite` without stating its size and hash"):
        load_bundle(bundle_dir)


def test_names_of_files_inside():
    assert all(map(inside, ["a", "a/b.onnx", ".hidden", "a..b"]))


@pytest.mark.parametrize("name", ["stem.onnx", "model.onnx", "controls/original.onnx"])
def test_endless_loop_is_refused_in_whatever_file_it_is_before_anything_runs(bundle_dir, name):
    rewrite(bundle_dir, name, lambda proto: endless_loop())
    with pytest.raises(StretchError, match=f"{name} cannot be run: operator `Loop_0`"):
        load_bundle(bundle_dir)


def test_file_with_other_ends_than_the_manifest_states_is_named(bundle_dir):
    def rename(proto):
        proto.graph.node[-1].output[0] = proto.graph.output[0].name = "other"

    rewrite(bundle_dir, "head.onnx", rename)
    with pytest.raises(
        StretchError, match=r"head\.onnx does not fit the bundle: its output is `other` \[1, 5\], the manifest states `y` \[1, 5\]"
    ):
        load_bundle(bundle_dir)


def test_all_subgraphs_together_are_bounded_too(bundle_dir, monkeypatch):
    monkeypatch.setattr("scheduler.bundle.load.MAX_WORK", 1000)
    with pytest.raises(StretchError, match=r"its subgraphs take .* multiply-accumulates"):
        load_bundle(bundle_dir)


def test_operator_of_compiled_code_is_left_to_who_trusts_it(bundles, bundle_dir):
    (bundle_dir / "code.onnx").write_bytes((bundle_dir / "stem.onnx").read_bytes())
    bundles.edit(bundle_dir, lambda m: m.update(contexts={"sm8550": {"stem": "code.onnx"}}))

    def opaque(proto):
        proto.graph.node[0].op_type, proto.graph.node[0].domain = "EPContext", "com.microsoft"

    rewrite(bundle_dir, "code.onnx", opaque)
    assert load_bundle(bundle_dir, check_hashes=True)
    bundles.edit(bundle_dir, lambda m: m.update(contexts={}))
    with pytest.raises(StretchError, match="EPContext"):
        load_bundle(bundle_dir)


def folder(path, text):
    path.mkdir()
    (path / "f").write_text(text)
    return path


@pytest.mark.linux
def test_held_folder_stays_itself_when_another_takes_its_name(tmp_path):
    held = Held(folder(tmp_path / "a", "old"))
    (tmp_path / "a").rename(tmp_path / "gone")
    folder(tmp_path / "a", "new")
    assert (held.root / "f").read_text() == "old"
    assert (tmp_path / "a" / "f").read_text() == "new"


@pytest.mark.linux
def test_held_folder_is_not_free_to_be_removed_until_it_is_let_go(tmp_path):
    held = Held(folder(tmp_path / "a", ""))
    with unused(tmp_path / "a") as free:
        assert not free
    del held
    with unused(tmp_path / "a") as free:
        assert free


@pytest.mark.linux
def test_folder_that_is_being_removed_is_not_held(tmp_path):
    folder(tmp_path / "a", "")
    with unused(tmp_path / "a"), pytest.raises(StretchError, match="is being removed"):
        Held(tmp_path / "a")


@pytest.fixture
def manifest(bundle_dir):
    """The two-branch bundle's manifest as plain data."""
    return msgspec.json.decode((bundle_dir / "bundle.json").read_bytes())


def problems(data):
    return list(graph_problems(msgspec.convert(data, Manifest, strict=False)))


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
        (lambda m: [tensor(m, name).update(layout="PHWC4") for name in ("s1.cpu.y", "s1.gpu.y", "t1")], "cannot be put side by side"),
        (lambda m: m["subgraphs"][0].update(inputs=["t2"]), "not in topological order"),
        (lambda m: m.update(inputs=[]), "the model reads no tensor"),
        (lambda m: m.update(outputs=[]), "the model writes no tensor"),
        (lambda m: m.update(inputs=["x", "x"]), "the model reads the tensor `x` twice"),
        (lambda m: m["subgraphs"][1].update(inputs=[]), "`s1.cpu` reads no tensor"),
        (lambda m: m["subgraphs"][1].update(outputs=["s1.cpu.y"] * 2), "`s1.cpu` writes the tensor `s1.cpu.y` twice"),
        (lambda m: m["subgraphs"][1].update(inputs=["t0", "x"]), "tensor `x` states the consumers stem and is read by s1.cpu, stem"),
        (lambda m: m.update(outputs=["y", "t2"]), "tensor `t2` states the consumers head and is read by head, output"),
    ],
)
def test_each_inconsistency_is_told_in_words(manifest, change, message):
    change(manifest)
    assert any(message in problem for problem in problems(manifest)), problems(manifest)


def test_several_ends_and_several_tensors_have_no_problem(bundles, tmp_path):
    data = msgspec.json.decode((bundles.several_ends(tmp_path / "b") / "bundle.json").read_bytes())
    assert problems(data) == []
    data["model"]["output_shape"] = [1, 3]
    assert problems(data) == ["the model's first output has shape [1, 3], its tensor `first` [1, 5]"]
