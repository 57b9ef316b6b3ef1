"""Where the operators of a file run on a runtime, for people."""

from rich.table import Table

from scheduler.explain.answer import RuntimeExplanation
from stretch.report.fit import Fitting, column, plain_table


def runtime_lines(found: RuntimeExplanation) -> list[str]:
    """The counts, the first unsupported operator and the fix, a line each.

    Args:
        found: Result of `explain_file` or `fix_file`.
    """
    on, there = sum(op.taken is True for op in found.operators), sum(op.taken is not None for op in found.operators)
    share = "" if found.share is None else f", {100 * found.share:.0f} % of the MACs"
    parts = "partition" if found.partitions == 1 else "partitions"
    lines = [
        f"{found.runtime}, {found.device}: takes {on} of {there} operators{share}, in {found.partitions} {parts}, copies {found.copies}"
    ]
    if not found.obstacles:
        return [*lines, "all operators are supported"]
    first = found.obstacles[0]
    lines.append(f"first unsupported operator: {first.operator} ({first.op}), {first.cause}")
    if first.words:
        lines.append(f"  {found.runtime.split()[0]} says: {first.words}")
    lines.append(f"  {first.change}")
    if found.fix is not None:
        before, after = found.fix.operators
        lines.append(f"helps, operators off it {before} -> {after}: {'; '.join(found.fix.steps)}")
        if found.fix.file is not None:
            lines.append(f"written: {found.fix.file}, largest difference {found.fix.max_error:.1e}")
    return lines


def runtime_table(found: RuntimeExplanation) -> Fitting:
    """A row for each operator.

    Args:
        found: What `explain_file` told.
    """
    return Fitting([lambda: _table(found, True), lambda: _table(found, False)])


def _table(found: RuntimeExplanation, wide: bool) -> Table:
    causes = {each.operator: each.cause for each in found.obstacles}
    table = plain_table()
    column(table, "operator", fold=not wide)
    column(table, "kind")
    if wide:
        column(table, "runs on")
        column(table, "part", right=True)
        column(table, "MACs", right=True)
    column(table, "why", fold=True)
    for op in found.operators:
        middle = (op.target or "", "" if op.partition is None else str(op.partition), f"{op.macs:,}") if wide else ()
        why = f"{causes[op.name]}: {op.reason}" if op.name in causes else op.reason
        table.add_row(op.name, op.op, *middle, why)
    return table
