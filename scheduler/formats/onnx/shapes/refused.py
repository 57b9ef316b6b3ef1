"""Why some operators are in no bundle."""

from collections.abc import Mapping

_SIZES = "how large its result is depends on what the network computes"
_INSIDE = "it holds a graph, and how often that runs is not bounded"
_CHANCE = "its result is random"

#: The reason for operators that ONNX has and bundles have not.
REASONS: Mapping[str, str] = {
    **dict.fromkeys(("Compress", "NonMaxSuppression", "NonZero", "Unique"), _SIZES),
    **dict.fromkeys(("If", "Loop", "Scan", "SequenceMap"), _INSIDE),
    **dict.fromkeys(("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), _CHANCE),
    "Dropout": "it is for training",
}


def reason(operator: str) -> str:
    """Why a bundle holds no such operator, and what to do instead."""
    known = REASONS.get(operator, "nn-stretch does not know what it makes or how much work that is")
    return f"no bundle holds `{operator[:60]}`: {known}; take it out of the network, or write it with other operators"
