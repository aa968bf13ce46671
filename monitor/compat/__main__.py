"""`python -m monitor.compat SCRIPT [ARGUMENTS]`: run a script with the stand-ins installed."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from monitor.compat.finder import install
from monitor.errors import MonitorError

USAGE = """usage: python -m monitor.compat SCRIPT [ARGUMENTS]

Run a script that imports smdebug's Python profiling, on phasewatch's classes. For example:
    python -m monitor.compat analyse.py --profiles /opt/ml/output/profiler
"""
EXIT_USAGE = 2


def main(arguments: list[str]) -> int:
    """Run the script as the main module; its own exit code is kept."""
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stderr.write(USAGE)
        return 0 if arguments else EXIT_USAGE
    script = Path(arguments[0])
    if not script.exists():
        tell(f"there is no script {arguments[0]!r}")
        return EXIT_USAGE
    try:
        install(warn=tell)
    except MonitorError as error:
        tell(str(error))
        return EXIT_USAGE
    sys.argv = list(arguments)
    if script.is_file():
        sys.path[0] = str(script.resolve().parent)
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


def tell(message: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"python -m monitor.compat: {message}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
