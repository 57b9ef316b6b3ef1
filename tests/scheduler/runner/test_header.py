import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.runner.header import _text, plan_header
from tests.scheduler.bundles import several_ends, two_branches
from tests.scheduler.runner.exported import exported_file, with_file

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return exported_file(tmp_path_factory.mktemp("header"), lambda path: two_branches(path, 1, ("cpu", "gpu", "dsp")))


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


@given(st.text(max_size=40))
def test_any_name_is_a_string_of_cpp_that_ends_where_it_should(name):
    text = _text(name)
    assert text.isascii()
    assert text.isprintable()
    inside = text[1:-1]
    assert not re.search(r'"|\?|\\(?![0-7]{3})', inside)
    read = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), inside.encode())
    assert read.decode() == name
