"""The error for a request that no design meets, as data first and in words last."""

from collections.abc import Sequence

from predictors.errors import InfeasibleError, TightRule
from stretch.planning.sentences import Mention, Sentence


def refusal(what: str | Sentence, rules: Sequence[TightRule]) -> InfeasibleError:
    """The error whose hint names the nearest values with a design.

    Args:
        rules: The tightest rules; where there are several, they give way together.
    """
    noun, verb = ("value", "is") if len(rules) == 1 else ("values", "are")
    hint = Sentence(
        f"the nearest {noun} with a design {verb} {{}}", _listed([Mention(rule.rule, rule.nearest) for rule in rules], " with ")
    )
    return InfeasibleError(what, hint, rules)


def tightest(model: str, rules: Sequence[TightRule]) -> InfeasibleError:
    """The error that blames the tightest of a request's rules."""
    named = _listed([Mention(rule.rule, rule.value) for rule in rules], " and ")
    verb = "is" if len(rules) == 1 else "are"
    return refusal(Sentence(f"no design of `{{}}` meets the constraints; the tightest {verb} {{}}", model, named), rules)


def _listed(mentions: Sequence[Mention], between: str) -> Sentence:
    return Sentence(between.join("{}" for _ in mentions), *mentions)
