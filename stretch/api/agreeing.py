"""A network that agrees with its original as often as asked for, or one sentence on why there is none."""

from collections.abc import Callable

from msgspec.structs import replace

from predictors.errors import InfeasibleError, StretchError, UsageError
from stretch.api.branched import Branched
from stretch.planning.config import PlanConfig
from stretch.planning.own_options import KINDS
from stretch.planning.sentences import Mention, Sentence

#: Plans and builds for a request.
Make = Callable[[PlanConfig], Branched]


def check_request(config: PlanConfig, *, repair: bool, images: bool, design: bool, dry_run: bool) -> None:
    """Refuse what cannot be measured, before any work is done for it."""
    if config.min_agreement is None:
        if repair:
            raise UsageError(
                "there is nothing to repair without a bound", Sentence("say how often to agree with {}", Mention("min_agreement", 0.95))
            )
        return
    if dry_run and not config.accuracy:
        raise UsageError(
            "a dry run builds no network that could agree with the original",
            Sentence("leave out {}, or give {}", Mention("min_agreement"), Mention("accuracy", "FILE")),
        )
    if not images and not dry_run:
        raise UsageError(
            "how often two networks agree is measured on images, and there are none", Sentence("give {}", Mention("images", "DIR"))
        )
    if repair and design:
        raise UsageError("a design that is given is not changed", Sentence("leave out {} or {}", Mention("repair"), Mention("design")))


def check_run(count: int, *, mapped: bool, images: bool) -> None:
    """Refuse a request for running a bundle's files that cannot be met."""
    if count < 0:
        raise UsageError(Sentence("{} is no number of images", Mention("run_images", count)), "give 0 for none, or more")
    if mapped and not images:
        raise UsageError(
            "processors are mapped for comparing the bundle's files with the original, and there are no images to compare them on",
            Sentence("give {}, or map processors when the bundle runs", Mention("images", "DIR")),
        )


def first_of(make: Make, request: PlanConfig, *, repair: bool) -> Branched:
    """The network of a request; where no design of it is predicted to agree often enough and it may be repaired, of one that may divide segments exactly."""
    try:
        return make(request)
    except InfeasibleError as error:
        exact = with_exact_kinds(request)
        if not repair or exact == request or not any(rule.rule == "min_agreement" for rule in error.rules):
            raise
        return make(exact)


def agreeing(result: Branched, least: float, again: Make | None) -> Branched:
    """The network if it agrees with the original often enough, else one in which fewer stages were stretched.

    Each time the segment that loses most alone is kept as it is in the original: on one processor,
    or divided exactly where joins and strategy of the request allow it. What is left of the network
    is planned, calibrated and compared anew.

    Args:
        least: Share of the images held back in which both must see the same class.
        again: Plans and builds for another request; None if the design must stay.

    Raises:
        InfeasibleError: If it does not, and the design must stay or nothing is left to keep.
        StretchError: If agreement was not measured.
    """
    request = with_exact_kinds(result.plan.config)
    while True:
        agreement = result.agreement
        if agreement is None or agreement.value is None:
            why = "there are too few images to hold any back" if agreement is None else "its outputs are no list of class scores"
            if agreement is not None and agreement.classes:
                why = "it answers nearly always the same class on these images: give images of several classes"
            raise StretchError(
                f"how often `{result.plan.graph.name}` agrees with the original was not measured: {why}",
                Sentence("leave out {}", Mention("min_agreement")),
            )
        if agreement.value >= least:
            return result
        worst = _worst(result)
        if again is None or not worst:
            raise _refusal(result, least, repaired=again is not None)
        request = replace(request, keep=(*request.keep, *worst))
        result = again(request)


def with_exact_kinds(config: PlanConfig) -> PlanConfig:
    """The request, with segments divided exactly where it can be searched for."""
    if config.strategy != "exact" or config.widens:
        return config
    return replace(config, kinds=tuple(dict.fromkeys((*config.planned_kinds, *(kind for kind, exact in KINDS.items() if exact)))))


def _worst(result: Branched) -> list[str]:
    """Stages of the segment that agrees least where it alone takes the place of the original's; none if all are the original's."""
    assert result.agreement is not None
    known = [segment_agreement for segment_agreement in result.agreement.segments if segment_agreement.value is not None]
    # of equal counts the one that changes the outputs more; those that fit nowhere alone come last
    worst = min(
        known,
        key=lambda segment_agreement: (segment_agreement.value, -(segment_agreement.error or 0.0)),
        default=next(iter(result.agreement.segments), None),
    )
    if worst is None:
        return []
    segment = next(row.segment for row in result.plan.run.segments if row.segment.name == worst.segment)
    kept = result.plan.config.keep
    return [stage.name for stage in result.plan.stages_of(segment) if stage.name not in kept]


def _refusal(result: Branched, least: float, *, repaired: bool) -> InfeasibleError:
    agreement = result.agreement
    assert agreement is not None
    what = Sentence(
        "`{}` branched sees the original's class in {} of {} images held back, {} asks for more",
        result.plan.graph.name,
        f"{agreement.value:.1%}",
        str(agreement.images),
        Mention("min_agreement", least),
    )
    if repaired:
        return InfeasibleError(what, "give more images to calibrate with, or ask for less")
    worst = ", ".join(
        f"`{segment.segment}` alone keeps {segment.value:.0%}"
        for segment in sorted(agreement.segments, key=lambda segment: segment.value or 0.0)
        if segment.value is not None
    )
    return InfeasibleError(
        what, Sentence("let segments stay as they are until it holds with {}{}", Mention("repair"), f" ({worst})" if worst else "")
    )
