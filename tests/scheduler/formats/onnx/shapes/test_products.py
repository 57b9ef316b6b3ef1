import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from predictors.errors import StretchError
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, reals, rule, sizes

#: Pairs of shapes that numpy's matmul takes, with batches that broadcast and vectors.
PRODUCTS = arrays.mutually_broadcastable_shapes(signature="(n?,k),(k,m?)->(n?,m?)", max_dims=2, max_side=4)


@given(PRODUCTS)
def test_product_has_the_shape_that_the_runtime_gives_it(drawn):
    agrees(Case("MatMul", [reals(shape) for shape in drawn.input_shapes]))


@given(st.permutations("abcde"), st.integers(1, 4), st.integers(1, 4), st.data())
def test_product_by_letters_has_the_sizes_of_its_letters(letters, first, second, data):
    lengths = {letter: data.draw(sizes) for letter in letters}
    one, other = letters[:first], letters[-second:]
    made = data.draw(st.lists(st.sampled_from(sorted({*one, *other})), unique=True))
    inputs = [reals(tuple(lengths[letter] for letter in each)) for each in (one, other)]
    agrees(Case("Einsum", inputs, {"equation": f"{''.join(one)},{''.join(other)}->{''.join(made)}"}))


def test_work_is_counted_in_multiply_accumulates():
    assert rule("Gemm", [(2, 5), (7, 5)], {"transB": 1}).work == 2 * 5 * 7
    assert rule("MatMul", [(3, 1, 4, 5), (2, 5, 6)]).work == 3 * 2 * 4 * 5 * 6
    assert rule("MatMul", [(5,), (5,)]).work == 5
    assert rule("Einsum", [(3, 4), (4, 5)], {"equation": b"ab,bc->"}).work == 3 * 4 * 5


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("Gemm", ([(2, 5), (7, 5)],), "5 columns meet 7 rows"),
        ("Gemm", ([(2, 5), (5, 7), (3,)],), "its bias|do not go together"),
        ("MatMul", ([(2, 5), (7, 5)],), "5 columns meet 7 rows"),
        ("MatMul", ([(2, 5), ()],), "a single number"),
        ("MatMul", ([(2, 3, 5), (4, 5, 6)],), "do not go together"),
        ("MatMul", ([(2, 5)],), "it has 1 inputs"),
        ("Einsum", ([(2, 5)], {"equation": b"ab->a"}), "1 inputs"),
        ("Einsum", ([(2, 5), (5, 3)], {"equation": b"ab,bc"}), "its equation is"),
        ("Einsum", ([(2, 2), (2, 3)], {"equation": b"aa,ac->c"}), "its equation is"),
        ("Einsum", ([(2, 5), (5, 3)], {"equation": b"...b,bc->...c"}), "its equation is"),
        ("Einsum", ([(2, 5), (4, 3)], {"equation": b"ab,bc->ac"}), "`b` has two sizes"),
        ("Einsum", ([(2, 5), (5, 3)], {"equation": b"ab,bc->ad"}), "its equation is"),
    ],
)
def test_product_that_does_not_fit_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        rule(op, *given_node)
