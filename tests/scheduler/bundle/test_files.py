import msgspec
import onnx
import pytest

from predictors.errors import StretchError
from scheduler.bundle.load import file_problems, inside, onnx_problems
from scheduler.bundle.load import load_bundle, read_bundle
from tests.scheduler.formats.onnx.test_checks import endless_loop


def rewrite(bundles, folder, name, change):
    """Change an ONNX file of a bundle and state its new size and hash."""
    proto = onnx.load(folder / name)
    proto = change(proto) or proto
    (folder / name).write_bytes(proto.SerializeToString())
    entry = msgspec.to_builtins(bundles.file_entry(folder / name))
    bundles.edit(folder, lambda m: m["files"].update({name: entry}))


@pytest.mark.parametrize("name", ["a", "a/b.onnx", ".hidden", "a..b"])
def test_names_of_files_inside(name):
    assert inside(name)


@pytest.mark.parametrize("name", ["", ".", "/", "/a", "../a", "a/../b", "a\\b", "c:a", "a\0b"])
def test_names_that_are_not_of_files_inside(name):
    assert not inside(name)


def test_whole_bundle_has_no_problem(bundle_dir):
    bundle = read_bundle(bundle_dir)
    assert list(file_problems(bundle_dir, bundle.held, bundle.manifest, hashes=True)) == []
    assert list(onnx_problems(bundle_dir, bundle.held, bundle.manifest)) == []


@pytest.mark.parametrize("name", ["stem.onnx", "model.onnx", "controls/original.onnx"])
def test_endless_loop_is_refused_in_whatever_file_it_is_before_anything_runs(bundles, bundle_dir, name):
    rewrite(bundles, bundle_dir, name, lambda proto: endless_loop())
    with pytest.raises(StretchError, match=f"{name} cannot be run: operator `Loop_0`"):
        load_bundle(bundle_dir)


def test_file_with_other_ends_than_the_manifest_states_is_named(bundles, bundle_dir):
    def rename(proto):
        proto.graph.node[-1].output[0] = proto.graph.output[0].name = "other"

    rewrite(bundles, bundle_dir, "head.onnx", rename)
    with pytest.raises(
        StretchError, match=r"head\.onnx does not fit the bundle: its output is `other` \[1, 5\], the manifest states `y` \[1, 5\]"
    ):
        load_bundle(bundle_dir)


def test_all_subgraphs_together_are_bounded_too(bundles, bundle_dir, monkeypatch):
    monkeypatch.setattr("scheduler.bundle.load.MAX_WORK", 1000)
    with pytest.raises(StretchError, match=r"its subgraphs take .* multiply-accumulates"):
        load_bundle(bundle_dir)


def test_operator_of_compiled_code_is_left_to_who_trusts_it(bundles, bundle_dir):
    (bundle_dir / "code.onnx").write_bytes((bundle_dir / "stem.onnx").read_bytes())
    bundles.edit(bundle_dir, lambda m: m.update(contexts={"sm8550": {"stem": "code.onnx"}}))

    def opaque(proto):
        proto.graph.node[0].op_type, proto.graph.node[0].domain = "EPContext", "com.microsoft"

    rewrite(bundles, bundle_dir, "code.onnx", opaque)
    assert load_bundle(bundle_dir, check_hashes=True)
    bundles.edit(bundle_dir, lambda m: m.update(contexts={}))
    with pytest.raises(StretchError, match="EPContext"):
        load_bundle(bundle_dir)
