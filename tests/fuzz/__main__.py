"""Fuzzes and prints what came of it.

    .cache/test/bin/python -m tests.fuzz [TARGET …] [--executions N] [--seconds S] [--seed N] [--folder DIR]

Targets are those of tests/fuzz/targets.py and `pool`. Executions are shared out over the decoders that are named, and
names and parameters get a tenth each besides. Without a limit of time it takes as long as it takes: at some 10,000 a
second, ten million are a quarter of an hour or more.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

import anyio

from tests.fuzz.pool import fuzz_pool, seeds
from tests.fuzz.running import Outcome, fuzz

SHARES = {
    "cprofile": 0.55,
    "pyinstrument": 0.35,
    "marshal": 0.02,
    "session": 0.04,
    "pool": 0.04,
    "names": 0.1,
    "parameters": 0.1,
}
"""Of the executions that are asked for; the decoders' add up to 1."""


def show(outcome: Outcome) -> None:
    """Print one line."""
    speed = outcome.executions / max(outcome.seconds, 1e-9)
    print(
        f"{outcome.target:12} {outcome.executions:>11,} executions ({outcome.inputs:,} inputs), "
        f"{outcome.crashes} crashes, {outcome.hangs} hangs, {outcome.died} decoders died, "
        f"coverage {outcome.coverage or '–'}, {outcome.seconds:.0f} s, {speed:,.0f}/s",
        flush=True,
    )
    for reason in outcome.reasons:
        print(f"  {reason}", flush=True)


def run(name: str, *, executions: int, seconds: float, seed: int, folder: Path) -> Outcome:
    """Fuzz one target."""
    if name == "pool":
        files = seeds(folder / "corpus")
        return anyio.run(partial(fuzz_pool, files, executions=executions, seconds=seconds, seed=seed))
    return fuzz(name, executions=executions, seconds=seconds, seed=seed, folder=folder)


def main(arguments: list[str]) -> int:
    """Fuzz; returns 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", choices=[[], *SHARES], metavar="TARGET")
    parser.add_argument("--executions", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=1e9, help="for all together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None, help="where what was learned and found stays")
    chosen = parser.parse_args(arguments)
    names = chosen.targets or list(SHARES)
    whole = sum(SHARES[name] for name in names)
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="pw-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for name in names:
        outcomes.append(
            run(
                name,
                executions=int(chosen.executions * SHARES[name]),
                seconds=chosen.seconds * SHARES[name] / whole,
                seed=chosen.seed,
                folder=folder,
            )
        )
        show(outcomes[-1])
    decoded = sum(each.executions for each in outcomes if each.target not in ("names", "parameters"))
    found = sum(each.crashes + each.hangs for each in outcomes)
    print(f"{decoded:,} executions over the decoders; {found} findings; corpora and findings are in {folder}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
