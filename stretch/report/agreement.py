"""Agreement of a branched network with its original as text."""

from collections.abc import Iterator

from scheduler.bundle.agreement import Agreement


def agreement_lines(agreement: Agreement) -> Iterator[str]:
    """Agreement of a network with its original: in fp32, with the files of its bundle, and by segment, one line each."""
    if agreement.value is None:
        if agreement.classes:
            several = f"{agreement.classes} classes" if agreement.classes > 1 else "one class"
            yield f"the original answers {several} for these images, nearly always the same: no agreement is given"
        yield f"measured on {agreement.images} images held back: error of the outputs {agreement.error:.3f} of the original's"
    else:
        of = f", one of {agreement.classes} that it answers," if agreement.classes else ""
        yield (
            f"measured on {agreement.images} images held back: the original's class{of} in {agreement.value:.1%} ({agreement.low:.1%} to {agreement.high:.1%}), "
            f"error of the scores {agreement.error:.3f} of the original's"
        )
    if (ran := agreement.bundle) is not None:
        where = ", ".join(
            f"{'/'.join(precisions)} on {name} (run here by {ran.delegates[name]})" for name, precisions in ran.precisions.items()
        )
        share = "" if ran.value is None else f"the original's class in {ran.value:.1%} ({ran.low:.1%} to {ran.high:.1%}), "
        yield f"measured with the bundle's files on {ran.images} of them, {where}: {share}error {ran.error:.3f}"
    for segment in agreement.segments:
        if segment.error is not None:
            share = "" if segment.value is None else f"the original's class in {segment.value:.1%}, "
            yield f"  {segment.segment} alone changed: {share}error {segment.error:.3f}"
