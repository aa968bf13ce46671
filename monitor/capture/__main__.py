"""`python -m monitor.capture [options] train.py …`: runs a script that is not changed, and profiles its steps."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from monitor.capture.automatic import follow_frameworks
from monitor.capture.recorder import Capture
from monitor.capture.settings import PROFILER_NAMES
from monitor.capture.timers import TIMER_NAMES
from monitor.errors import ConfigError

EXIT_CONFIG = 2


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; what follows the script is the script's."""
    parser = argparse.ArgumentParser(
        prog="python -m monitor.capture",
        description="Run a training script and profile its steps. Settings that are not given come from the "
        "environment (PHASEWATCH_CAPTURE_…), a TOML file, or SageMaker's profilerconfig.json.",
    )
    parser.add_argument("--base", help="the folder that gets framework/…")
    parser.add_argument("--framework", help="names a folder (default: pytorch)")
    parser.add_argument("--profiler", choices=PROFILER_NAMES)
    parser.add_argument("--timer", choices=TIMER_NAMES, help="cProfile's clock")
    parser.add_argument("--interval", dest="interval_seconds", type=float, metavar="SECONDS", help="pyinstrument's")
    parser.add_argument("--node", help="who writes (default: rank and host)")
    parser.add_argument("--every", type=int, metavar="N", help="profile every Nth step; 0 for none until asked")
    parser.add_argument("--steps", metavar="RANGES", help="only these, such as 100-120,200,300-")
    parser.add_argument("--first", type=int, metavar="K", help="only the first K steps of each mode")
    parser.add_argument("--modes", metavar="MODES", help="only these, such as train,eval")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name, as for python -m")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="the script's own arguments")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the script; it ends as it would by itself, and so does the process."""
    words = vars(parse(arguments))
    script, own, module = (words.pop(name) for name in ("script", "arguments", "module"))
    given = {name: value for name, value in words.items() if value is not None}
    try:
        capture = Capture(**given)
    except ConfigError as error:
        sys.stderr.write(f"python -m monitor.capture: {error}\n")
        sys.exit(EXIT_CONFIG)
    follow_frameworks(capture)
    capture.start()
    sys.argv = [script, *own]
    if module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        run_script(script)


def run_script(path: str) -> None:
    """Run a file as `python FILE` does; its module stays alive until the interpreter ends, as __main__ does."""
    sys.path[0] = str(Path(path).resolve().parent)
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        sys.stderr.write(f"python -m monitor.capture: cannot read {path}: {error.strerror}\n")
        sys.exit(EXIT_CONFIG)
    program = ModuleType("__main__")
    program.__file__ = path
    program.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = program
    exec(compile(source, path, "exec"), program.__dict__)


if __name__ == "__main__":
    main()
