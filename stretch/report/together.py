"""Terminal output of a pair of networks."""

from typing import TYPE_CHECKING

from stretch.planning.together import TogetherAnswer
from stretch.report.fit import column, plain_table

if TYPE_CHECKING:
    from rich.console import Console


def print_together(console: "Console", answer: TogetherAnswer) -> None:
    """Print both designs, their concurrent run and their baseline."""
    table = plain_table()
    column(table, "network")
    column(table, "processors")
    for title in ("ms together", "ms alone", "best alone"):
        column(table, title, right=True)
    column(table, "branches", fold=True)
    for row in answer.designs:
        words = "; ".join(row.branches) or "none: one processor at a time"
        numbers = (f"{ms:.2f}" for ms in (row.latency_ms, row.alone_ms, row.best_alone_ms))
        table.add_row(row.model, ", ".join(row.processors), *numbers, words)
    console.print(table)
    console.print()
    console.print(f"one inference of each, begun together: {answer.makespan_ms:.2f} ms until both are over")
    console.print(f"one after the other, each on its best candidate: {answer.sequential_ms:.2f} ms")
    mapping = ", ".join(f"{row.model} on {processor}" for row, processor in zip(answer.designs, answer.fixed, strict=True))
    console.print(f"best mapping of whole networks ({mapping}): {answer.fixed_ms:.2f} ms")
    if answer.pairs_per_second is not None:
        console.print(f"of each a second: {answer.pairs_per_second:.1f}; by that mapping {answer.fixed_per_second:.1f}")
    console.print(
        f"best in {answer.goal} of {answer.candidates[0]} × {answer.candidates[1]} candidates, all simulated: "
        f"{answer.speedup_over_sequential:.2f} times one after the other, {answer.speedup_over_fixed:.2f} times the mapping"
    )
