"""Runs fuzzing processes one after the other until so much is done, and counts what became of them."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.child import COUNT

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
HANG_SECONDS = 10
LONGEST_INPUT = 4096
RUNS_A_CHILD = 500_000
HANG_CODE = 70
MOST_FINDINGS = 20
MAY_DIE = ("marshal",)
"""`marshal` is not safe on hostile bytes: a process that dies of it is what decoders are processes for."""


@dataclass(slots=True)
class Outcome:
    """What fuzzing one target gave.

    Attributes:
        executions: files decoded, or names or requests read; inputs: what the fuzzer made, of one or more files.
        crashes: findings; each left its input in the folder of findings. died: processes that `marshal` ended.
        coverage: branches of the code under test that were reached.
    """

    target: str
    executions: int = 0
    inputs: int = 0
    crashes: int = 0
    hangs: int = 0
    died: int = 0
    coverage: int = 0
    seconds: float = 0.0
    reasons: list[str] = field(default_factory=list)


def fuzz(target: str, *, executions: int, seconds: float, seed: int, folder: Path) -> Outcome:
    """Fuzz one target until it ran so often, or so long.

    Args:
        folder: what was learned stays in it (`corpus/TARGET`), and what was found (`findings`).
    """
    outcome = Outcome(target=target)
    counter = folder / f"counter-{target}"
    counter.write_bytes(COUNT.pack(0))
    started = time.monotonic()
    while outcome.executions < executions and outcome.crashes + outcome.hangs + outcome.died < MOST_FINDINGS:
        left = seconds - (time.monotonic() - started)
        if left < 1:
            break
        a_child = max(1.0, (outcome.executions / outcome.inputs) if outcome.inputs else 1.0)
        runs = min(RUNS_A_CHILD, int((executions - outcome.executions) / a_child) + 1)
        run_child(outcome, counter, runs=runs, seconds=int(left), seed=seed, folder=folder)
        (outcome.executions,) = COUNT.unpack(counter.read_bytes())
        seed += 1
    outcome.seconds = time.monotonic() - started
    return outcome


def run_child(outcome: Outcome, counter: Path, *, runs: int, seconds: int, seed: int, folder: Path) -> None:
    """Run one process to its end and note how that was."""
    learned, findings = folder / "corpus" / outcome.target, folder / "findings"
    for each in (learned, findings):
        each.mkdir(parents=True, exist_ok=True)
    stored = CORPUS / outcome.target
    command = [
        *(sys.executable, "-m", "tests.fuzz.child", outcome.target, str(counter)),
        *(f"-runs={runs}", f"-max_total_time={seconds}", f"-seed={seed + 1}", f"-max_len={LONGEST_INPUT}"),
        *(f"-timeout={HANG_SECONDS}", f"-timeout_exitcode={HANG_CODE}", "-rss_limit_mb=0", "-print_final_stats=1"),
        f"-artifact_prefix={findings}/{outcome.target}-",
        *(str(learned), *([str(stored)] if stored.is_dir() else [])),
    ]
    log = folder / f"{outcome.target}.log"
    with log.open("wb") as out:
        code = subprocess.run(command, check=False, cwd=HERE.parents[1], stdout=out, stderr=out).returncode
    text = log.read_text(errors="replace")
    outcome.coverage = max([outcome.coverage, *(int(found) for found in re.findall(r"cov: (\d+)", text))])
    outcome.inputs += max((int(found) for found in re.findall(r"^#(\d+)\t", text, re.MULTILINE)), default=0)
    if code == 0:
        return
    shutil.copyfile(log, findings / f"{outcome.target}-{seed}.log")
    died = code < 0 or "deadly signal" in text
    if code == HANG_CODE:
        outcome.hangs += 1
    elif died and outcome.target in MAY_DIE:
        outcome.died += 1
    else:
        outcome.crashes += 1
    outcome.reasons.append(reason_in(text, code))


def reason_in(text: str, code: int) -> str:
    """Find out of what a process died."""
    found = re.search(r"=== Uncaught Python exception: ===\n(.*)", text) or re.search(r"ERROR: libFuzzer: (.*)", text)
    if found is not None:
        return found[1][:200]
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
