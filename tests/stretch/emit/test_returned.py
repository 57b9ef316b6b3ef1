from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest

pytest.importorskip("torch")

from predictors.errors import StretchError
from stretch.capture.structure import Result
from stretch.emit.returned import returned_code

pytestmark = pytest.mark.torch

A, B = Result("a", "out"), Result("b", "aux")
Pair = namedtuple("Pair", "one other")


@dataclass
class Heads:
    scores: object
    boxes: object


@pytest.mark.parametrize(
    ("template", "value"),
    [
        (A, 1),
        ((A, B), (1, 2)),
        ((A,), (1,)),
        ([A, [B]], [1, [2]]),
        (OrderedDict(out=A, aux={"deep": (B, None, 0.5)}), {"out": 1, "aux": {"deep": (2, None, 0.5)}}),
        ({3: A}, {3: 1}),
        (Pair(A, B), (1, 2)),
        (Heads(A, [B]), {"scores": 1, "boxes": [2]}),
    ],
)
def test_code_gives_the_structure(template, value):
    assert eval(returned_code(template, {"a": "x", "b": "y"}), {"x": 1, "y": 2}) == value


def test_what_has_no_words_is_refused():
    with pytest.raises(StretchError, match="cannot be written as Python code"):
        returned_code((A, object()), {"a": "x"})
