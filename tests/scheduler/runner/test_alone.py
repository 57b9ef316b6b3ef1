import struct

import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.bundle.tflite_file import parse_tflite
from scheduler.delegates.litert import open_interpreter
from scheduler.formats.tflite_schema import TFLITE
from scheduler.runner.sources import patches
from tests.scheduler.bundles import two_branches
from tests.scheduler.runner.exported import exported_file

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.torch

STEPS = ("stem", "s1.cpu", "s1.dsp", "s1.join", "s2.cpu", "s2.dsp", "s2.join", "head")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = exported_file(tmp_path_factory.mktemp("alone"), lambda path: two_branches(path, 1, ("cpu", "dsp")))
    return parse_tflite(path.read_bytes(), path)


def patched(file, signature):
    content = bytearray(file.path.read_bytes())
    for patch in patches(bytes(content), file, signature):
        struct.pack_into("<I", content, patch.at, patch.value)
    return bytes(content)


def run(content, threads=1):
    interpreter = open_interpreter(content, threads, "a signature")
    for number, each in enumerate(interpreter.get_input_details()):
        interpreter.set_tensor(each["index"], np.random.default_rng(number).standard_normal(each["shape"]).astype(np.float32))
    interpreter.invoke()
    return [interpreter.get_tensor(each["index"]) for each in interpreter.get_output_details()]


@pytest.mark.parametrize("signature", STEPS)
def test_a_patched_file_has_one_signature_and_its_subgraph(file, signature):
    model = TFLITE.decode(patched(file, signature))
    assert [each["signature_key"] for each in model["signature_defs"]] == [signature]
    assert model["signature_defs"][0].get("subgraph_index", 0) == 0
    assert [each["name"] for each in model["subgraphs"]] == [signature]


@pytest.mark.parametrize("signature", STEPS)
def test_a_patched_file_computes_what_the_signature_written_alone_computes(file, signature):
    for one, other in zip(run(patched(file, signature)), run(file.alone(signature)), strict=True):
        assert np.array_equal(one, other)


def test_few_bytes_change_and_the_file_stays_as_long(file):
    before = file.path.read_bytes()
    for signature in STEPS:
        after = patched(file, signature)
        assert len(after) == len(before)
        assert sum(a != b for a, b in zip(before, after, strict=True)) <= 20


def test_a_signature_that_is_not_there_is_refused(file):
    with pytest.raises(StretchError, match="no signature `s9`"):
        patches(file.path.read_bytes(), file, "s9")
