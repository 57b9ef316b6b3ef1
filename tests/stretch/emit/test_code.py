import keyword

import pytest

torch = pytest.importorskip("torch")
from hypothesis import given  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from predictors.errors import StretchError  # noqa: E402
from predictors.graph import Op  # noqa: E402
from stretch.emit.code import attribute, code_of, literal  # noqa: E402

pytestmark = pytest.mark.torch

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.from_regex(r"[a-z0-9_ .,:>*-]{0,9}", fullmatch=True),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.tuples(inner, inner),
    max_leaves=8,
)


@pytest.mark.slow
@given(value=plain)
def test_literal_is_python_that_gives_the_value(value):
    assert eval(literal(value)) == value


@pytest.mark.parametrize("value", ["it's", 'a"b', "{0}", "back\\slash", "two\nlines", object(), {"a": 1}, 1j])
def test_what_could_end_a_word_or_stand_for_a_tensor_is_no_literal(value):
    with pytest.raises(StretchError, match="cannot be written as Python code"):
        literal(value)


@given(name=st.text(max_size=12) | st.sampled_from([*keyword.kwlist, "train", "forward", "self", "cpu", "0"]))
def test_attribute_is_a_name_that_python_and_torch_leave_free(name):
    made = attribute(name)
    assert made.isidentifier()
    assert made.isascii()
    assert not keyword.iskeyword(made)
    nn.Module().add_module(made, nn.ReLU())


def test_kind_that_is_computed_by_nothing_of_torch_and_has_no_rule_is_refused(monkeypatch):
    class Own(nn.Module):
        pass

    monkeypatch.setattr("stretch.emit.code.make_module", lambda op, shapes: Own())
    with pytest.raises(StretchError, match="cannot be written as plain Python code"):
        code_of(Op("op", "prelu", ("x",)), [(1, 4, 8, 8)])
