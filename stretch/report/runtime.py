"""Terminal output of a file's placement on a runtime."""

from rich.table import Table

from scheduler.explain.answer import RuntimeExplanation
from stretch.report.fit import Fitting, column, plain_table


def runtime_lines(explanation: RuntimeExplanation) -> list[str]:
    """The counts, the first unsupported operator and the fix, a line each.

    Args:
        explanation: Result of `explain_file` or `fix_file`.
    """
    on, there = sum(op.taken is True for op in explanation.operators), sum(op.taken is not None for op in explanation.operators)
    share = "" if explanation.share is None else f", {100 * explanation.share:.0f} % of the MACs"
    parts = "partition" if explanation.partitions == 1 else "partitions"
    lines = [
        f"{explanation.runtime}, {explanation.device}: takes {on} of {there} operators{share}, in {explanation.partitions} {parts}, copies {explanation.copies}"
    ]
    if not explanation.obstacles:
        return [*lines, "all operators are supported"]
    first = explanation.obstacles[0]
    lines.append(f"first unsupported operator: {first.operator} ({first.op}), {first.cause}")
    if first.words:
        lines.append(f"  {explanation.runtime.split()[0]} says: {first.words}")
    lines.append(f"  {first.change}")
    if explanation.fix is not None:
        before, after = explanation.fix.operators
        lines.append(f"helps, operators off it {before} -> {after}: {'; '.join(explanation.fix.steps)}")
        if explanation.fix.file is not None:
            lines.append(f"written: {explanation.fix.file}, largest difference {explanation.fix.max_error:.1e}")
    return lines


def runtime_table(explanation: RuntimeExplanation) -> Fitting:
    """A row for each operator.

    Args:
        explanation: Result of `explain_file`.
    """
    return Fitting([lambda: _table(explanation, True), lambda: _table(explanation, False)])


def _table(explanation: RuntimeExplanation, wide: bool) -> Table:
    causes = {obstacle.operator: obstacle.cause for obstacle in explanation.obstacles}
    table = plain_table()
    column(table, "operator", fold=not wide)
    column(table, "kind")
    if wide:
        column(table, "runs on")
        column(table, "part", right=True)
        column(table, "MACs", right=True)
    column(table, "why", fold=True)
    for op in explanation.operators:
        middle = (op.target or "", "" if op.partition is None else str(op.partition), f"{op.macs:,}") if wide else ()
        why = f"{causes[op.name]}: {op.reason}" if op.name in causes else op.reason
        table.add_row(op.name, op.op, *middle, why)
    return table
