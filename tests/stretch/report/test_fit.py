import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from stretch.report.fit import Fitting, column, plain_table


def printed(renderable, width):
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, markup=False, emoji=False).print(renderable)
    return stream.getvalue()


def variant(title, *cells, fold=False):
    def make():
        table = plain_table()
        for i in range(len(cells)):
            column(table, f"{title}{i}", right=i > 0, fold=fold)
        table.add_row(*cells)
        return table

    return make


@pytest.mark.parametrize(("width", "first"), [(100, "wide0"), (40, "wide0"), (25, "middle0"), (12, "narrow0")])
def test_first_variant_that_is_no_wider_than_the_terminal_is_taken(width, first):
    variants = [variant("wide", "a" * 20, "b" * 10), variant("middle", "a" * 10, "b" * 10), variant("narrow", "a" * 30, fold=True)]
    assert printed(Fitting(variants), width).split()[0] == first


names = st.text("abcdefgh._/", min_size=1, max_size=60)


@given(names, names, st.integers(8, 120))
def test_no_character_is_lost_whatever_the_width(name, number, width):
    text = printed(Fitting([variant("t", name, number), variant("t", name, fold=True)]), width)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    _, *lines = text.splitlines()
    assert "".join("".join(lines).split()).startswith(name)
