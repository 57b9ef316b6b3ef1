"""Turn public tables into shipped measurements: `python -m experiments.measurements.run SET FOLDER`."""

import sys
from importlib import import_module

SETS = ("phones", "transformers", "npu", "boards")


def main() -> None:
    """Run the program of the set in the first argument, with the remaining arguments."""
    if len(sys.argv) < 2 or sys.argv[1] not in SETS:
        raise SystemExit(f"name one of {', '.join(SETS)}, then the folder of its tables")
    program = import_module(f"experiments.measurements.{sys.argv.pop(1)}")
    program.main()


if __name__ == "__main__":
    main()
