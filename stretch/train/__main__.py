"""``torchrun -m stretch.train RECIPE``: one process of a run on many GPUs or machines."""

import importlib
import sys


def main() -> None:
    """`stretch train` with the words of this command line.

    The command line stands above the trainer, so that it is found here by its name.
    """
    importlib.import_module("stretch.cli").app(["train", *sys.argv[1:]])


if __name__ == "__main__":
    main()
