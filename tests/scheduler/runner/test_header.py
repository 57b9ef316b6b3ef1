import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.runner.header import _text, plan_header
from tests.scheduler.bundles import two_branches
from tests.scheduler.runner.exported import exported_file

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return exported_file(tmp_path_factory.mktemp("header"), lambda path: two_branches(path, 1, ("cpu", "gpu", "dsp")))


def test_processors_stand_in_the_order_in_which_they_are_set_to_work(path):
    text = plan_header(path.read_bytes(), path)
    assert re.findall(r'\{"(\w+)", Dispatch::(\w+)\}', text) == [("gpu", "kAsync"), ("dsp", "kBlocking"), ("cpu", "kInline")]


@given(st.text(max_size=40))
def test_any_name_is_a_string_of_cpp_that_ends_where_it_should(name):
    text = _text(name)
    assert text.isascii()
    assert text.isprintable()
    inside = text[1:-1]
    assert not re.search(r'"|\?|\\(?![0-7]{3})', inside)
    read = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), inside.encode())
    assert read.decode() == name
