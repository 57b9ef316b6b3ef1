import os
import shutil

import msgspec
import onnx
import pytest
from onnx import external_data_helper

from predictors.errors import StretchError
from scheduler.bundle.load import MAX_MANIFEST_BYTES, load_bundle


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


def test_tflite_file_must_be_one_of_the_hashed_files(bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: m.update(tflite="model.tflite"))
    with pytest.raises(StretchError, match=r"uses the file `model\.tflite` without stating its size and hash"):
        load_bundle(bundle_dir)
