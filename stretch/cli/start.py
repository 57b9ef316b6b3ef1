"""Ctrl-C while the command line is still being imported: the sentence and the exit code of later."""

import os
import signal
import sys

INTERRUPTED = 130

#: Version of the JSON output; adding keys keeps it, renaming keys increments it.
SCHEMA = 1


def end_at_interrupt() -> None:
    """Let Ctrl-C end this process at once, until `started`; only where it is the program `stretch`, and Ctrl-C does as usual."""
    if os.path.basename(sys.argv[0]) == "stretch" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def started() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` from now on."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    # an exception could be caught, or become another one, in an imported module
    from stretch import __version__

    if "--json" in sys.argv:
        os.write(1, f'{{"schema": {SCHEMA}, "version": "{__version__}", "error": "interrupted", "hint": null}}\n'.encode())
    else:
        os.write(2, b"error: interrupted\n")
    os._exit(INTERRUPTED)
