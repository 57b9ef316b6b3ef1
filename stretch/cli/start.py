"""Ctrl-C during the import of the command line, with the same message and exit code as later."""

import os
import signal
import sys

INTERRUPTED = 130

#: Version of the JSON output; adding keys keeps it, renaming keys increments it.
SCHEMA = 1


def end_at_interrupt() -> None:
    """Let Ctrl-C end this process at once, until `started`; only in the program `stretch` with the default handler."""
    if os.path.basename(sys.argv[0]) == "stretch" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def started() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` from now on."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    # an imported module might catch or replace an exception
    from stretch import __version__

    if "--json" in sys.argv:
        os.write(1, f'{{"schema": {SCHEMA}, "version": "{__version__}", "error": "interrupted", "hint": null}}\n'.encode())
    else:
        os.write(2, b"error: interrupted\n")
    os._exit(INTERRUPTED)
