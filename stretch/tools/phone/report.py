"""The report of a bundle on a phone."""

from stretch.planning.messages import command_line
from stretch.report.html.page import Grid, Page, Section
from stretch.tools.phone.measure import PhoneAnswer


def phone_page(answer: PhoneAnswer) -> Page:
    """Return the report of a bundle on a phone."""
    titles = ("signature", "processor", "precision", "ms", "kernels", "why not")
    rows = [
        (row.signature, row.processor, row.precision, "" if row.ms is None else f"{row.ms:.3f}", str(row.kernels), row.reason or "")
        for row in answer.signatures
    ]
    notes = []
    if (runner := answer.runner) is not None:
        notes.append(f"all branches: {runner.median_ms:.3f} ms, the median of {runner.runs}; the output differs by {runner.max_error:.1e}")
    if answer.measurements is not None:
        folder = answer.measurements if "/" in answer.measurements else f"./{answer.measurements}"
        more = "--device", answer.profile, "--measured-on", answer.phone, "--out", f"{answer.phone}.fit.json"
        command = command_line("profile", "fit", folder, *more)
        notes += [f"added to {answer.measurements}; once there are enough networks, fit them:", f"  {command}"]
    return Page(
        title=f"{answer.model} on {answer.phone}",
        lead=[f"{answer.model}, planned for {answer.device}, on {answer.phone} ({answer.serial}, {answer.system})"],
        sections=[Section("signatures", "Signatures", (), [Grid("Each on each processor", titles, rows, (3, 4))])] if rows else [],
        warnings=answer.warnings,
        source=answer.source,
        notes=notes,
    )
