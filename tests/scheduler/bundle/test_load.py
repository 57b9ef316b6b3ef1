import os
import shutil

import msgspec
import numpy as np
import onnx
import pytest
from onnx import external_data_helper

from predictors.errors import StretchError
from scheduler.bundle.load import MAX_MANIFEST_BYTES, bundle_problems, load_bundle, read_bundle


def test_loads_a_whole_bundle_and_finds_its_files(bundle_dir):
    bundle = load_bundle(bundle_dir, check_hashes=True)
    assert [s.name for s in bundle.manifest.subgraphs] == ["stem", "s1.cpu", "s1.gpu", "s2.cpu", "s2.gpu", "head"]
    assert bundle.file("stem.onnx").is_file()


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
def test_refuses_a_path_that_is_no_bundle(tmp_path, kind):
    path = tmp_path / "b"
    if kind == "empty":
        path.mkdir()
    elif kind == "file":
        path.write_text("x")
    with pytest.raises(StretchError, match="is not a bundle") as error:
        load_bundle(path)
    assert "stretch branch" in error.value.hint


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


@pytest.mark.parametrize("key", ["precision", "planned_precision"])
def test_precision_that_is_none_is_refused(bundles, bundle_dir, key):
    bundles.edit(bundle_dir, lambda m: m["subgraphs"][1].update({key: "fp99"}))
    with pytest.raises(StretchError, match=rf"`\$\.subgraphs\[1\]\.{key}`"):
        load_bundle(bundle_dir)


def test_unknown_key_is_refused(bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: m.update(run="rm"))
    with pytest.raises(StretchError, match="run"):
        load_bundle(bundle_dir)


def test_manifest_above_the_size_limit_is_not_parsed(bundle_dir):
    (bundle_dir / "bundle.json").write_bytes(b" " * (MAX_MANIFEST_BYTES + 1))
    with pytest.raises(StretchError, match="is larger than"):
        load_bundle(bundle_dir)


@pytest.mark.parametrize("name", ["../x.onnx", "/etc/passwd", "a/../../x", "C:x", "a\\..\\b", ""])
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


def test_missing_file_is_named(bundle_dir):
    (bundle_dir / "s1.gpu.onnx").unlink()
    with pytest.raises(StretchError, match=r"s1\.gpu\.onnx is missing"):
        load_bundle(bundle_dir)


def test_folder_in_place_of_a_file_is_refused(bundle_dir):
    (bundle_dir / "s1.gpu.onnx").unlink()
    (bundle_dir / "s1.gpu.onnx").mkdir()
    with pytest.raises(StretchError, match="is not a file"):
        load_bundle(bundle_dir)


def test_truncated_file_is_refused_by_its_size(bundle_dir):
    os.truncate(bundle_dir / "head.onnx", 10)
    with pytest.raises(StretchError, match=r"head\.onnx has 10 bytes"):
        load_bundle(bundle_dir)


def test_edited_file_of_equal_size_is_refused_by_its_hash(bundle_dir):
    file = bundle_dir / "head.onnx"
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    with pytest.raises(StretchError, match="SHA-256 differs"):
        load_bundle(bundle_dir, check_hashes=True)


def test_swapped_files_are_refused_by_their_hashes(bundle_dir):
    a, b, c = (bundle_dir / name for name in ("s2.cpu.onnx", "s2.gpu.onnx", "c"))
    assert a.stat().st_size == b.stat().st_size
    a.rename(c)
    b.rename(a)
    c.rename(b)
    problems = list(bundle_problems(read_bundle(bundle_dir), hashes=True))
    assert len(problems) == 2
    assert all("SHA-256 differs" in problem for problem in problems)


def test_pipe_in_place_of_the_manifest_is_refused_without_reading_it(bundle_dir):
    (bundle_dir / "bundle.json").unlink()
    os.mkfifo(bundle_dir / "bundle.json")
    with pytest.raises(StretchError, match="is not a file"):
        load_bundle(bundle_dir)


def test_file_that_is_used_without_a_hash_is_refused(bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: m["files"].pop("model.onnx"))
    with pytest.raises(StretchError, match="without stating its size and hash"):
        load_bundle(bundle_dir)


def test_file_that_is_no_onnx_model_is_refused(bundles, bundle_dir):
    (bundle_dir / "stem.onnx").write_bytes(b"\x00garbage")
    entry = msgspec.to_builtins(bundles.file_entry(bundle_dir / "stem.onnx"))
    bundles.edit(bundle_dir, lambda m: m["files"].update({"stem.onnx": entry}))
    with pytest.raises(StretchError, match="is not an ONNX model"):
        load_bundle(bundle_dir)


def external(bundles, bundle_dir, location):
    """Move the stem's weights into a file of their own and hash the model again."""
    model = onnx.load(bundle_dir / "stem.onnx")
    weights = model.graph.initializer[0]
    data = weights.raw_data
    external_data_helper.set_external_data(weights, location)
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    (bundle_dir / "stem.onnx").write_bytes(model.SerializeToString())
    entry = msgspec.to_builtins(bundles.file_entry(bundle_dir / "stem.onnx"))
    bundles.edit(bundle_dir, lambda m: m["files"].update({"stem.onnx": entry}))
    return data


@pytest.mark.parametrize("location", ["stem.data", "../stem.data", "/etc/hostname"])
def test_weights_outside_of_the_hashed_files_are_refused(bundles, bundle_dir, location):
    data = external(bundles, bundle_dir, location)
    (bundle_dir / "stem.data").write_bytes(data)
    with pytest.raises(StretchError, match="not a file of the bundle"):
        load_bundle(bundle_dir)


def test_weights_in_a_hashed_file_of_the_bundle_are_accepted(bundles, bundle_dir):
    (bundle_dir / "stem.data").write_bytes(external(bundles, bundle_dir, "stem.data"))
    entry = msgspec.to_builtins(bundles.file_entry(bundle_dir / "stem.data"))
    bundles.edit(bundle_dir, lambda m: m["files"].update({"stem.data": entry}))
    assert load_bundle(bundle_dir, check_hashes=True)


def test_graph_problem_names_the_manifest(bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: m["joins"][0].update(inputs=["s1.cpu.y", "nowhere"]))
    with pytest.raises(StretchError, match=r"bundle\.json: `s1\.join` uses the tensor `nowhere`"):
        load_bundle(bundle_dir)


def test_three_branches_of_any_batch_load(bundles, tmp_path):
    path = bundles.two_branches(tmp_path / "b", batch=2, processors=("cpu", "gpu", "dsp"))
    shapes = {t.name: t.shape for t in load_bundle(path).manifest.tensors}
    assert shapes["t1"] == (2, 4 + 6 + 8, bundles.SIDE, bundles.SIDE)
    assert np.prod(shapes["y"]) == 10


def test_tflite_file_must_be_one_of_the_hashed_files(bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: m.update(tflite="model.tflite"))
    with pytest.raises(StretchError, match=r"uses the file `model\.tflite` without stating its size and hash"):
        load_bundle(bundle_dir)
