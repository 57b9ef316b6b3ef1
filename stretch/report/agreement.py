"""How far a branched network agrees with its original, in words."""

from collections.abc import Iterator

from scheduler.bundle.agreement import Agreement


def agreement_lines(found: Agreement) -> Iterator[str]:
    """How far a network agrees with its original: in fp32, with the files of its bundle, and by segments, a line each."""
    if found.value is None:
        if found.classes:
            several = f"{found.classes} classes" if found.classes > 1 else "one class"
            yield f"the original answers {several} for these images, nearly always the same: no agreement is given"
        yield f"measured on {found.images} images held back: error of the outputs {found.error:.3f} of the original's"
    else:
        of = f", one of {found.classes} that it answers," if found.classes else ""
        yield (
            f"measured on {found.images} images held back: the original's class{of} in {found.value:.1%} ({found.low:.1%} to {found.high:.1%}), "
            f"error of the scores {found.error:.3f} of the original's"
        )
    if (ran := found.bundle) is not None:
        where = ", ".join(f"{'/'.join(own)} on {name} (run here by {ran.delegates[name]})" for name, own in ran.precisions.items())
        share = "" if ran.value is None else f"the original's class in {ran.value:.1%} ({ran.low:.1%} to {ran.high:.1%}), "
        yield f"measured with the bundle's files on {ran.images} of them, {where}: {share}error {ran.error:.3f}"
    for each in found.segments:
        if each.error is not None:
            share = "" if each.value is None else f"the original's class in {each.value:.1%}, "
            yield f"  {each.segment} alone changed: {share}error {each.error:.3f}"
