import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.runner.sources import _text, dispatch_of, plan_header
from tests.scheduler.bundles import several_ends, two_branches
from tests.scheduler.runner.exported import exported_file, with_file
from tests.scheduler.tflite_files import changed

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return exported_file(tmp_path_factory.mktemp("header"), lambda path: two_branches(path, 1, ("cpu", "gpu", "dsp")))


@pytest.mark.slow
def test_the_header_states_the_file_that_it_fits(path):
    content = path.read_bytes()
    text = plan_header(content, path)
    assert hashlib.sha256(content).hexdigest() in text
    assert f"{len(content)}u" in text
    assert plan_header(content, path) == text


def test_processors_stand_in_the_order_in_which_they_are_set_to_work(path):
    text = plan_header(path.read_bytes(), path)
    assert re.findall(r'\{"(\w+)", Dispatch::(\w+)\}', text) == [("gpu", "kAsync"), ("dsp", "kBlocking"), ("cpu", "kInline")]


def test_branches_of_a_segment_that_read_the_same_start_together(path, tmp_path):
    def meetings(text):
        return dict(re.findall(r'\{"([\w.]+)", "[\w.]+", -?\d+, .*, (-?\d+)\},', text))

    found = meetings(plan_header(path.read_bytes(), path))
    assert {name: found[name] for name in found if found[name] != "-1"} == {
        name: number for number, segment in (("0", "s1"), ("1", "s2")) for name in (f"{segment}.{p}" for p in ("cpu", "gpu", "dsp"))
    }
    bundle = with_file(tmp_path, several_ends)
    other = bundle.file(bundle.manifest.tflite)
    assert set(meetings(plan_header(other.read_bytes(), other)).values()) == {"-1"}


def test_a_file_that_is_no_bundles_is_refused(path, tmp_path):
    content = changed(path.read_bytes(), lambda model: model.pop("metadata"))
    with pytest.raises(StretchError, match="no plan in its metadata"):
        plan_header(content, tmp_path / "other.tflite")


@given(st.text(max_size=40))
def test_any_name_is_a_string_of_cpp_that_ends_where_it_should(name):
    text = _text(name)
    assert text.isascii()
    assert text.isprintable()
    inside = text[1:-1]
    assert not re.search(r'"|\?|\\(?![0-7]{3})', inside)
    read = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), inside.encode())
    assert read.decode() == name


def test_what_is_neither_cpu_nor_gpu_has_a_thread_of_its_own():
    assert [dispatch_of(name) for name in ("cpu", "gpu", "dsp", "npu")] == ["inline", "async", "blocking", "blocking"]
