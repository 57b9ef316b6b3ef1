"""Files with changed bytes, and the one sentence that reading them may end in."""

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import strategies as st

from predictors.errors import StretchError


def damaged(draw, content: bytes, places: st.SearchStrategy | None = None) -> bytearray:
    """The content with one to four other bytes."""
    result = bytearray(content)
    places = st.integers(0, len(result) - 1) if places is None else places
    for _ in range(draw(st.integers(1, 4))):
        result[draw(places)] = draw(st.integers(0, 255))
    return result


@contextmanager
def one_sentence() -> Iterator[None]:
    """The block ends without an error or with one sentence."""
    message = "none"
    try:
        yield
    except StretchError as error:
        message = error.message
    assert len(message.splitlines()) == 1
