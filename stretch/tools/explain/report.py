"""The report of a file on a runtime."""

from scheduler.tools.explain.model import RuntimeExplanation
from stretch.report.html.page import Grid, Page, Section


def runtime_page(explanation: RuntimeExplanation) -> Page:
    """Return the report of a file on a runtime: the counts, the first unsupported operator, possible fixes, and one row per operator."""
    causes = {obstacle.operator: obstacle.cause for obstacle in explanation.obstacles}
    rows = []
    for op in explanation.operators:
        part, reason = (
            "" if op.partition is None else str(op.partition),
            f"{causes[op.name]}: {op.reason}" if op.name in causes else op.reason,
        )
        rows.append((op.name, op.op, op.target or "", part, "unknown" if op.macs is None else f"{op.macs:,}", reason))
    grid = Grid("Where each operator runs", ("operator", "kind", "runs on", "part", "MACs", "why"), rows, right=(3, 4))
    return Page(
        title=f"{explanation.file} on {explanation.runtime}",
        lead=runtime_lines(explanation),
        sections=[Section("operators", "Operators", (), [grid])],
        warnings=explanation.warnings,
    )


def runtime_lines(explanation: RuntimeExplanation) -> list[str]:
    """Return the counts, the first unsupported operator and the fix, one per line."""
    on, answered = sum(op.taken is True for op in explanation.operators), sum(op.taken is not None for op in explanation.operators)
    share = "" if explanation.share is None else f", {100 * explanation.share:.0f} % of the MACs"
    parts = "partition" if explanation.partitions == 1 else "partitions"
    lines = [
        f"{explanation.runtime}, {explanation.device}: takes {on} of {answered} operators{share}, in {explanation.partitions} {parts}, copies {explanation.copies}"
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
