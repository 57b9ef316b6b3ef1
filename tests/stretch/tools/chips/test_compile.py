"""Code for chips: TFLite signatures compiled by LiteRT's tool, and QNN contexts compiled from ONNX files."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from predictors.errors import InfeasibleError, StretchError, UsageError
from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import random_input, verify_bundle
from scheduler.delegates import DspDelegate
from scheduler.runtime.session import Session
from stretch.export.precision import export_precision
from stretch.export.quantize.images import synthetic_images
from stretch.export.quantize.replay import replay, runner
from stretch.export.tflite import FILE, export_tflite, write_tflite
from stretch.tools.chips import compile as compiler
from stretch.tools.chips.compile import Case, compile_signatures, export_aot, export_contexts, find_toolchain, simulate
from tests.scheduler.bundles import two_branches

pytest.importorskip("ai_edge_litert")


pytestmark = pytest.mark.qnn

IMAGES = synthetic_images((1, 3, 8, 8), 8)


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    return load_bundle(two_branches(tmp_path_factory.mktemp("floats") / "bundle", processors=("cpu", "dsp")))


@pytest.fixture(scope="module")
def int8(floats, tmp_path_factory):
    out = tmp_path_factory.mktemp("int8") / "bundle"
    export_precision(floats, out, {"dsp": "int8"}, IMAGES, "synthetic")
    return load_bundle(out)


@pytest.fixture(scope="module")
def lite(floats, tmp_path_factory):
    out = tmp_path_factory.mktemp("lite") / "bundle"
    export_tflite(floats, out, IMAGES, "synthetic", precision={"dsp": "int8"})
    return load_bundle(out)


@pytest.fixture(scope="module")
def compiled(lite, tmp_path_factory):
    out = tmp_path_factory.mktemp("compiled") / "bundle"
    steps = []
    answer = export_aot(lite, out, ["sm8450"], steps.append)
    assert steps == ["sm8450"]
    bundle = load_bundle(out, check_hashes=True)
    assert (answer.format, answer.checks) == ("tflite", bundle.manifest.checks["aot"])
    assert [(code.chip, code.name) for code in answer.subgraphs] == [("sm8450", "s1.dsp"), ("sm8450", "s2.dsp")]
    assert min(code.operators for code in answer.subgraphs) > 0
    return bundle


@pytest.mark.slow
def test_compiled_copy_is_hashed_and_the_tflite_file_stays_unchanged(lite, compiled):
    assert compiled.manifest.aot == {"sm8450": "aot/sm8450.tflite"}
    content = compiled.file("aot/sm8450.tflite").read_bytes()
    assert compiled.manifest.files["aot/sm8450.tflite"].sha256 == hashlib.sha256(content).hexdigest()
    assert compiled.file(FILE).read_bytes() == lite.file(FILE).read_bytes() != content
    assert lite.manifest.files.items() <= compiled.manifest.files.items()
    assert verify_bundle(compiled.path).ok


@pytest.mark.slow
def test_another_tflite_file_drops_the_code_of_the_earlier_one(compiled, tmp_path):
    export_tflite(compiled, tmp_path / "again", IMAGES, "synthetic")
    again = load_bundle(tmp_path / "again", check_hashes=True).manifest
    assert again.aot == {}
    assert "aot" not in again.checks
    assert not (tmp_path / "again" / "aot").exists()
    assert again.files.keys() == compiled.manifest.files.keys() - {"aot/sm8450.tflite"}


@pytest.fixture(scope="module")
def model(int8, tmp_path_factory):
    path = tmp_path_factory.mktemp("model with a space") / "model.tflite"
    path.write_bytes(write_tflite(int8))
    return path


def operators(content):
    return {name: [kind for kind, _ in result] for name, (_, result) in compiler._signatures(compiler._read(content)).items()}


def plan(content):
    tables = compiler._read(content)
    (buffer,) = [entry.buffer for entry in tables.metadata if entry.name == b"nn_stretch.plan"]
    return bytes(tables.buffers[buffer].data)


def test_named_signatures_become_code_and_the_others_and_the_plan_stay(model, tmp_path):
    before = model.read_bytes()
    code = compile_signatures(model, ["s2.dsp"], "sm8450", tmp_path / "out.tflite")
    assert code.keys() == {"s2.dsp"}
    after = (tmp_path / "out.tflite").read_bytes()
    kinds = operators(before)
    assert len(kinds["s2.dsp"]) == code["s2.dsp"].operators == 3
    assert operators(after) == {**kinds, "s2.dsp": [compiler.DISPATCH]}
    assert code["s2.dsp"].content in after
    assert code["s2.dsp"].content not in before
    assert model.read_bytes() == before
    assert plan(after) == plan(before)


def test_damaged_file_is_an_error_that_leaves_nothing(model, tmp_path):
    broken, content = tmp_path / "broken.tflite", model.read_bytes()
    broken.write_bytes(content[:4] + b"XXXX" + content[8:])
    with pytest.raises(StretchError, match=r"LiteRT's tool cannot compile broken.tflite for sm8450: \S"):
        compile_signatures(broken, ["s1.dsp"], "sm8450", tmp_path / "out.tflite")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.tflite"]


def test_operators_that_the_tool_leaves_to_the_cpu_are_refused(model, tmp_path, monkeypatch):
    # The tool compiles another subgraph, so its output does not mention this one.
    apply = compiler._apply
    monkeypatch.setattr(compiler, "_apply", lambda chain, sdk, path, indices, chip, out: apply(chain, sdk, path, [0], chip, out))
    with pytest.raises(InfeasibleError, match=r"signature `s1.dsp`: LiteRT's plug-in takes 0 of 3 operators for sm8450"):
        compile_signatures(model, ["s1.dsp"], "sm8450", tmp_path / "out.tflite")
    assert list(tmp_path.iterdir()) == []


def test_tool_that_fails_without_a_message_or_does_not_start_is_an_error(model, tmp_path):
    for content, mode, reason in (("#!/bin/sh\nexit 6\n", 0o755, "status 6 and no reason"), ("", 0o644, "cannot be started")):
        tool = tmp_path / "tool"
        tool.write_text(content)
        tool.chmod(mode)
        with pytest.raises(StretchError, match=reason):
            compiler._apply(replace(find_toolchain(), tool=tool), tmp_path, model, [2], "sm8450", tmp_path / "out.tflite")


@pytest.mark.slow
def test_code_computes_what_the_int8_subgraphs_compute(int8, model, tmp_path):
    code = compile_signatures(model, ["s1.dsp", "s2.dsp"], "sm8450", tmp_path / "out.tflite")
    tensors = replay(int8.manifest, {s.name: runner(str(int8.file(s.file))) for s in int8.manifest.subgraphs}, random_input(int8))
    last = {name: np.ascontiguousarray(x.transpose(0, 2, 3, 1)) for name, x in tensors.items() if x.ndim == 4}
    ends = {name: (last[int8.subgraph(name).input], last[int8.subgraph(name).output]) for name in code}
    got = simulate({name: Case(code[name], x, y.shape) for name, (x, y) in ends.items()}, "sm8450")
    for name, (_, y) in ends.items():
        assert np.abs(got[name] - y).max() < 0.02 * np.abs(y).max()
    # another input gives another result, so the numbers come from the code
    x, y = ends["s1.dsp"]
    assert np.abs(simulate({"s1.dsp": Case(code["s1.dsp"], -x, y.shape)}, "sm8450")["s1.dsp"] - y).max() > 0.2 * np.abs(y).max()


@pytest.fixture(scope="module")
def contexts(int8, tmp_path_factory):
    out = tmp_path_factory.mktemp("contexts") / "bundle"
    steps = []
    answer = export_contexts(int8, out, ["sm8350"], steps.append)
    assert steps == ["s1.dsp for sm8350", "s2.dsp for sm8350"]
    bundle = load_bundle(out, check_hashes=True)
    assert (answer.format, answer.checks) == ("qnn", bundle.manifest.checks["contexts"])
    assert [(code.chip, code.name) for code in answer.subgraphs] == [("sm8350", "s1.dsp"), ("sm8350", "s2.dsp")]
    assert min(code.cosine for code in answer.subgraphs) > 0.9999
    return bundle


@pytest.mark.slow
def test_code_of_the_bundle_runs_in_a_session_for_its_chip(int8, contexts):
    x = random_input(int8)
    with Session(int8) as plain, Session(contexts, delegates={"dsp": DspDelegate(chip="sm8350")}) as coded:
        assert np.allclose(coded(x), plain(x), atol=0.02 * np.abs(plain(x)).max())


def test_bundle_with_code_is_verified_like_any_other_and_has_none_for_other_chips(contexts, floats, tmp_path):
    assert verify_bundle(contexts.path).ok
    assert set(contexts.manifest.contexts["sm8350"]) == {"s1.dsp", "s2.dsp"}
    with pytest.raises(StretchError, match=r"has no code of subgraph `s1.dsp` for sm8550"):
        Session(contexts, delegates={"dsp": DspDelegate(chip="sm8550")})
    with pytest.raises(UsageError, match="no int8 subgraph on a dsp"):
        export_contexts(floats, tmp_path / "out", ["sm8350"])
