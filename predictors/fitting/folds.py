"""Folds by family: networks are left out together with all their relatives."""

from collections import Counter
from collections.abc import Mapping, Set

FOLDS = 5


def family_folds(families: Mapping[str, str], kinds: Mapping[str, Set[str]], folds: int = FOLDS) -> dict[str, int]:
    """The fold of each network; every family is in one fold.

    Largest families first, each into the fold with the fewest networks. Where only
    two families have a kind of kernel, they are put into different folds, so that
    no fold is predicted without ever having seen the kind.
    """
    sizes = Counter(families.values())
    has = {family: frozenset().union(*(kinds[name] for name, of in families.items() if of == family)) for family in sizes}
    often = Counter(kind for some in has.values() for kind in some)
    rare = {family: {kind for kind in some if often[kind] == 2} for family, some in has.items()}
    load = [0] * min(folds, len(sizes))
    inside: list[set[str]] = [set() for _ in load]
    of: dict[str, int] = {}
    for family in sorted(sizes, key=lambda name: (-sizes[name], name)):
        free = [i for i in range(len(load)) if not rare[family] & inside[i]] or list(range(len(load)))
        fold = min(free, key=lambda i: (load[i], i))
        of[family] = fold
        load[fold] += sizes[family]
        inside[fold] |= rare[family]
    return {name: of[family] for name, family in families.items()}
