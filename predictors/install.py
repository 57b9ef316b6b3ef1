"""How nn-stretch is installed, in one place: it is published on no index, so from a checkout of its repository."""

import os

#: Set where a board runs us, whose packages come from elsewhere.
ON_BOARD = "NN_STRETCH_ON_BOARD"


def install_line(*extras: str) -> str:
    """What brings nn-stretch, and with it packages it may go without.

    Args:
        extras: Extras of `pyproject.toml`, such as ``torch``; none for the base install.
    """
    if extras and os.environ.get(ON_BOARD):
        return f"`--extras {','.join(extras)}` beside `--on`"
    return f"`{install_command(*extras)}` in a checkout of nn-stretch"


def install_command(*extras: str) -> str:
    """The command alone, to be given in a checkout."""
    return f'pip install ".[{",".join(extras)}]"' if extras else "pip install ."


def upgrade_line() -> str:
    """What brings a newer nn-stretch."""
    return f"upgrade the checkout of nn-stretch and install it again, with `{install_command()}` there"
