import io

import pytest
from rich.console import Console

from stretch.planning.together import together, together_answer
from stretch.report.fit import print_page
from stretch.report.front import together_page
from tests.stretch.planning.test_together import MI9, PROCESSORS, both  # noqa: F401


@pytest.mark.slow
def test_both_networks_and_what_they_have_to_beat_are_told(both):  # noqa: F811
    for goal in ("makespan", "throughput"):
        answer = together_answer(together(*both, MI9, PROCESSORS, goal), {})
        stream = io.StringIO()
        print_page(Console(file=stream, width=160), together_page(answer))
        text = stream.getvalue()
        assert f"{answer.makespan_ms:.2f} ms until both are over" in text
        assert f"{answer.sequential_ms:.2f} ms" in text
        assert ("of each a second" in text) == (goal == "throughput")
