"""The generated header and TFLite file of the C++ runner."""

import re
import shutil
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.bundle.tflite_file import bundle_tflite, parse_tflite
from scheduler.delegates.litert import open_interpreter
from scheduler.tools.runner.sources import _text, patches, plan_header
from tests.scheduler.bundles import two_branches
from tests.scheduler.doubles import numbers
from tests.scheduler.tools.runner.built import exported

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("header"), lambda path: two_branches(path, 1, ("cpu", "gpu", "dsp")))


@pytest.fixture(scope="module")
def file(bundle):
    path = bundle.file(bundle.manifest.tflite)
    return parse_tflite(path.read_bytes(), path)


def test_processors_are_listed_in_the_order_of_their_dispatch(file):
    text = plan_header(file.path.read_bytes(), file.path)
    assert re.findall(r'\{"(\w+)", Dispatch::(\w+)\}', text) == [("gpu", "kAsync"), ("dsp", "kBlocking"), ("cpu", "kInline")]


@given(st.text(max_size=40))
def test_any_name_becomes_a_valid_cpp_string(name):
    text = _text(name)
    assert text.isascii()
    assert text.isprintable()
    assert not re.search(r'"|\?|\\(?![0-7]{3})', text[1:-1])
    assert re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), text[1:-1].encode()).decode() == name


def test_a_file_that_was_changed_is_refused(bundle, tmp_path):
    changed = load_bundle(shutil.copytree(bundle.path, tmp_path / "changed"))
    path = changed.file(changed.manifest.tflite)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(StretchError, match="SHA-256 differs"):
        bundle_tflite(changed)


def run(content):
    interpreter = open_interpreter(bytes(content), 1, "a signature")
    for number, input_detail in enumerate(interpreter.get_input_details()):
        interpreter.set_tensor(input_detail["index"], numbers(number, input_detail["shape"]))
    interpreter.invoke()
    return [interpreter.get_tensor(output_detail["index"]) for output_detail in interpreter.get_output_details()]


@pytest.mark.parametrize("signature", ["stem", "s1.cpu", "s1.dsp", "s1.join", "s2.gpu", "s2.dsp", "s2.join", "head"])
def test_patched_file_gives_the_results_of_a_file_with_one_signature(file, signature):
    content = bytearray(file.path.read_bytes())
    for patch in patches(bytes(content), file, signature):
        struct.pack_into("<I", content, patch.at, patch.value)
    for one, other in zip(run(content), run(file.single_signature_file(signature)), strict=True):
        assert np.array_equal(one, other)
    with pytest.raises(StretchError, match="`s9`"):
        patches(file.path.read_bytes(), file, "s9")
