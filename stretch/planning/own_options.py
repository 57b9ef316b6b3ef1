"""The options of the planner that are no constraints on single segments, and the words that they know."""

from collections.abc import Sequence
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Literal

import msgspec

from predictors.joins import DEFAULT, joins_that
from stretch.planning.objective import LONGEST
from stretch.planning.options import Option, Positive, Range, Ratio

#: Search strategies: the files of their folder.
STRATEGIES = tuple(sorted(module.name for module in iter_modules([str(Path(__file__).parent / "strategies")])))

#: Of these, the ones that divide every part of a network by itself, exactly: by rows unless other exact kinds are named.
SINGLE = ("operator_split",)

#: What may become of a segment beside what its exact divisions are called (`stretch.planning.design.division`): scaled copies.
STRETCH = "stretch"

#: What a segment may always stay; a request may name it beside others.
WHOLE = "whole"

#: How branches may meet: the joins of several branches, or what suits the planner.
JOINS = ("auto", *joins_that(lambda join: not join.exact))


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


#: Options that are no constraints on single segments.
OWN = (
    Option(
        "processors",
        tuple[str, ...],
        (),
        "Processors to use, such as cpu,gpu; all of the device's by default.",
        "Processors that branches may use; all of the device's if empty.",
    ),
    Option(
        "params",
        Range | None,
        None,
        "Range of parameters over the original's.",
        "Parameters of the branched over those of the original model, if bounded.",
        example="0.97:1.03",
    ),
    Option(
        "meet",
        tuple[str, ...],
        (),
        "Meeting points, cut points separated by commas.",
        "Meeting points; the network's stages if empty.",
    ),
    Option(
        "merge",
        Literal["never", "auto", "always"],
        "auto",
        "Merge neighbouring stages: never, auto (where nothing can branch otherwise) or always (where it is faster).",
        "Whether neighbouring stages may become one segment: ``auto`` where there is no design otherwise and no meeting points are "
        "given, ``always`` where it is faster.",
    ),
    Option(
        "cuts",
        Literal["stages", "blocks"],
        "stages",
        "Where stretched segments may begin and end: at ends of stages, or blocks, at those of blocks too, the stem among them; takes longer to search.",
        "Where stretched segments may begin and end: ``stages``, at the ends of stages, with the stem whole; ``blocks``, at those of blocks "
        "too, the stem among them, which takes longer to search.",
    ),
    Option(
        "keep",
        tuple[str, ...],
        (),
        "Stages that are not stretched, separated by commas: they stay whole, or are divided exactly where the kinds asked for allow it.",
        "Stages that are not stretched: they stay whole, or are divided exactly where `kinds` allows it.",
        example="s1,s4",
    ),
    Option(
        "kinds",
        tuple[str, ...],
        (),
        "What segments may become: stretch (scaled copies, the default), rows (bands of rows, exact), channels (exact), graph (along branches of the network's own graph, exact), or several: stretch,rows. Any may stay whole.",
        "What segments may become beside staying whole: ``stretch``, scaled copies, which are another network; ``rows``, bands of rows, "
        "``channels``, some channels each, and ``graph``, paths that the network has side by side, or parts of its graph, on several processors, whose output is the original's. If empty, ``stretch``, or with `lossless` "
        "every exact kind.",
    ),
    Option(
        "lossless",
        bool,
        False,
        "Only what computes the original's output, exact in fp32: no weights change, nothing needs training. Planned in fp32 and fp16 where --precision names nothing else: int8 rounds and needs images.",
        "Only designs that compute the original's output, exact in fp32: of the kinds those that are exact. Planned in fp32 and fp16 where `precision` names nothing else: int8 rounds and needs images.",
    ),
    Option(
        "join",
        Literal[JOINS],
        "auto",
        f"How branches meet: {_listed(JOINS)}.",
        f"How branches meet; ``auto`` uses `{DEFAULT}`, which keeps segments independent.",
    ),
    Option(
        "strategy",
        Literal[STRATEGIES],
        "exact",
        f"How designs are searched: {_listed(STRATEGIES)} (each kernel-sized part by itself, whole or split by rows).",
        "``exact``; ``evolve``, designs tried and varied, for what does not add up over segments; ``grid`` for the paper's uniform ratios; ``operator_split``: every part between two tensors that no kernel spans by "
        "itself, on one processor or its rows over several.",
    ),
    Option(
        "objective",
        Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST)],
        "latency",
        "What the design is best in: latency; energy (mJ); weights of both, such as 0.7*latency+0.3*energy; throughput, with many "
        "inferences in flight; robust, the time that nine in ten draws of the prediction keep; or accuracy, within a bound on latency.",
        "What the design is best in: ``latency``; ``energy``, mJ; weights of both, as ``0.7*latency+0.3*energy``, of ms and mJ; "
        "``throughput``, inferences a second with many in flight; ``robust``, the time that nine in ten draws of what the prediction "
        "rests on keep; or ``accuracy``, the highest predicted one within `latency_budget`, which needs `accuracy`. ``throughput`` "
        "and ``robust`` do not add up over segments: designs are tried, as with the strategy ``evolve``.",
        example="0.7*latency+0.3*energy",
    ),
    Option(
        "accuracy",
        str,
        "",
        "What predicts accuracy: the accuracy.json of `stretch export --rank`, or the sensitivity.json of `stretch search --images`.",
        "File of what predicts accuracy: of an accuracy predictor, or of a measured sensitivity (`stretch.planning.cost`).",
        file=True,
    ),
    Option(
        "min_accuracy", Ratio | None, None, "Predicted top-1, at least; needs accuracy.", "Predicted top-1, at least; needs `accuracy`."
    ),
    Option(
        "min_agreement",
        Ratio | None,
        None,
        "Share of images in which it must see the original's class, such as 0.95: designs are chosen by a prediction of it, and what is built is measured.",
        "Share of images in which the design must be predicted to see the original's class; needs a measured sensitivity: images to "
        "measure it on, or `accuracy`.",
    ),
    Option(
        "precision",
        dict[str, str],
        {},
        "Planned precision by processor, such as cpu=int8,gpu=fp16.",
        "Precision by processor where it is not the profile's default.",
        example="cpu=int8,gpu=fp16",
    ),
    Option(
        "rewrite",
        tuple[str, ...],
        (),
        "What scaled branches have instead of some operators, as gpu:silu=relu6,dsp:squeeze_excite=none; what the profile says by default.",
        "What scaled branches of a processor have instead of some operators (`predictors.rewrites`), as ``gpu:silu=relu6``; what the "
        "device's profile says if empty, nothing for ``none``.",
        example="gpu:silu=relu6",
    ),
    Option("latency_budget", Positive | None, None, "Predicted makespan, at most, ms."),
)
