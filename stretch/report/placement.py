"""Terminal tables of the placement and cost of operators and subgraphs."""

from collections.abc import Sequence

from rich.table import Table

from stretch.report.fit import Fitting, column, plain_table
from stretch.stages.explain import PlacedOperator, PlacedSubgraph


def operator_table(ops: Sequence[PlacedOperator], device: str) -> Fitting:
    """A row for each operator; stacked under its subgraph where the terminal is narrow.

    Args:
        ops: Of an `Explanation`.
    """
    return Fitting([lambda: _wide(ops, device), lambda: _stacked(ops)])


def subgraph_table(subgraphs: Sequence[PlacedSubgraph], device: str, planned_for: str) -> Fitting:
    """A row for each subgraph.

    Args:
        subgraphs: Of an `Explanation`.
    """
    titles = (f"planned ms on {planned_for}", f"ms on {device}"), ("planned ms", "ms")
    return Fitting([lambda pair=pair: _subgraphs(subgraphs, pair) for pair in titles])


def _wide(ops: Sequence[PlacedOperator], device: str) -> Table:
    table = plain_table()
    for title in ("operator", "kind", "subgraph", "delegate"):
        column(table, title)
    column(table, f"ms on {device}", right=True)
    column(table, "why")
    for op in ops:
        table.add_row(op.name, op.op, op.subgraph, op.delegate or "", _ms(op.ms, 3), op.reason)
    return table


def _stacked(ops: Sequence[PlacedOperator]) -> Table:
    """Operators under their subgraph, each reason under the first of those it holds for."""
    table = plain_table()
    column(table, "operator, why", fold=True)
    column(table, "kind")
    column(table, "ms", right=True)
    before, reason = None, None
    for op in ops:
        where = f"{op.subgraph}: {op.delegate}" if op.delegate else op.subgraph
        if where != before:
            table.add_row(where)
            before, reason = where, None
        table.add_row(f"  {op.name}", op.op, _ms(op.ms, 3))
        if op.reason != reason:
            reason = op.reason
            table.add_row(f"    {reason}")
    return table


def _subgraphs(subgraphs: Sequence[PlacedSubgraph], titles: tuple[str, str]) -> Table:
    table = plain_table()
    column(table, "subgraph", fold=True)
    column(table, "processor")
    for title in ("MACs", *titles):
        column(table, title, right=True)
    for subgraph in subgraphs:
        table.add_row(subgraph.name, subgraph.processor, f"{subgraph.macs:,}", _ms(subgraph.planned_ms, 2), _ms(subgraph.ms, 2))
    return table


def _ms(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
