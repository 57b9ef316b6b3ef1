from dataclasses import replace

import pytest

from predictors.errors import InfeasibleError, MissingBackendError, StretchError
from scheduler.bundle.load import load_bundle
from stretch.export.precision import export_precision
from stretch.export.tflite import aot_compiler as module
from stretch.export.tflite.aot_compiler import compile_signatures, find_toolchain, partitions
from stretch.export.tflite.bundle import write_tflite
from stretch.quantize.images import synthetic_images
from tests.scheduler.bundles import two_branches

pytestmark = pytest.mark.qnn
pytest.importorskip("ai_edge_litert")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model with a space")
    floats = load_bundle(two_branches(folder / "floats", processors=("cpu", "dsp")))
    export_precision(floats, folder / "int8", {"dsp": "int8"}, synthetic_images((1, 3, 8, 8), 8), "synthetic")
    (folder / "model.tflite").write_bytes(write_tflite(load_bundle(folder / "int8")))
    return folder / "model.tflite"


def operators(content):
    return {name: [kind for kind, _ in found] for name, (_, found) in module._signatures(module._read(content)).items()}


@pytest.mark.slow
def test_signatures_that_are_named_become_code_and_the_others_stay(model, tmp_path):
    before = model.read_bytes()
    code = compile_signatures(model, ["s2.dsp"], "sm8450", tmp_path / "out.tflite")
    assert code.keys() == {"s2.dsp"}
    after = (tmp_path / "out.tflite").read_bytes()
    kinds = operators(before)
    assert len(kinds["s2.dsp"]) == code["s2.dsp"].operators == 3
    assert operators(after) == {**kinds, "s2.dsp": [module.DISPATCH]}
    assert code["s2.dsp"].content in after
    assert code["s2.dsp"].content not in before
    assert model.read_bytes() == before


def test_plan_of_the_file_travels_with_the_code(model, tmp_path):
    compile_signatures(model, ["s1.dsp"], "sm8450", tmp_path / "out.tflite")

    def plan(content):
        tables = module._read(content)
        (buffer,) = [entry.buffer for entry in tables.metadata if entry.name == b"nn_stretch.plan"]
        return bytes(tables.buffers[buffer].data)

    assert plan((tmp_path / "out.tflite").read_bytes()) == plan(model.read_bytes())


def test_damaged_file_is_an_error_that_leaves_nothing(model, tmp_path):
    broken = tmp_path / "broken.tflite"
    content = bytearray(model.read_bytes())
    content[4:8] = b"XXXX"
    broken.write_bytes(content)
    with pytest.raises(StretchError, match=r"LiteRT's tool cannot compile broken.tflite for sm8450: \S"):
        compile_signatures(broken, ["s1.dsp"], "sm8450", tmp_path / "out.tflite")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.tflite"]


def test_operators_that_the_tool_leaves_to_the_cpu_are_refused(model, tmp_path, monkeypatch):
    # The tool is told to compile another subgraph, and so says nothing of this one.
    apply = module._apply
    monkeypatch.setattr(module, "_apply", lambda chain, sdk, path, indices, chip, out: apply(chain, sdk, path, [0], chip, out))
    with pytest.raises(InfeasibleError, match=r"signature `s1.dsp`: LiteRT's plug-in takes 0 of 3 operators for sm8450"):
        compile_signatures(model, ["s1.dsp"], "sm8450", tmp_path / "out.tflite")
    assert list(tmp_path.iterdir()) == []


def test_tool_that_compiles_more_than_it_was_asked_for_is_found_out(model, tmp_path, monkeypatch):
    apply = module._apply
    monkeypatch.setattr(module, "_apply", lambda chain, sdk, path, indices, chip, out: apply(chain, sdk, path, [0, *indices], chip, out))
    with pytest.raises(StretchError, match="changed signatures"):
        compile_signatures(model, ["s1.dsp"], "sm8450", tmp_path / "out.tflite")
    assert list(tmp_path.iterdir()) == []


def test_tool_that_ends_without_a_word_or_does_not_start_is_an_error(model, tmp_path):
    for content, mode, reason in (("#!/bin/sh\nexit 6\n", 0o755, "status 6 and no reason"), ("", 0o644, "cannot be started")):
        tool = tmp_path / "tool"
        tool.write_text(content)
        tool.chmod(mode)
        with pytest.raises(StretchError, match=reason):
            module._apply(replace(find_toolchain(), tool=tool), tmp_path, model, [2], "sm8450", tmp_path / "out.tflite")


def test_missing_library_is_named_with_the_install_line(tmp_path, monkeypatch):
    chain = find_toolchain()
    copy = tmp_path / "onnxruntime_qnn"
    copy.mkdir()
    for name in module.LIBRARIES[1:]:
        (copy / name).symlink_to(chain.libraries / name)
    folder = module._folder
    monkeypatch.setattr(module, "_folder", lambda name, package: copy if name == "onnxruntime_qnn" else folder(name, package))
    with pytest.raises(MissingBackendError, match=r"onnxruntime-qnn has no libQnnHtp.so here") as caught:
        find_toolchain()
    assert "pip install" in caught.value.hint


def test_counts_are_read_from_what_the_tool_prints():
    text = (
        "INFO: [compiler_plugin.cc:742] Partitioned subgraph<2>, selected 3 ops, from a total of 3 ops. resulted in 1 partitions.\n"
        "noise Partitioned subgraph<14>, selected 5 ops, from a total of 70 ops. resulted in 2 partitions.\n"
    )
    assert partitions(text) == {2: (3, 3, 1), 14: (5, 70, 2)}
    assert partitions("nothing of the kind") == {}
