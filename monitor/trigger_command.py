"""The verb `trigger`: leaves a request in a folder or asks the daemon to, and shows what nodes answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from monitor.client import Client
from monitor.triggers import Wish, find_base, read_answers, write_request

LOOK_EVERY_SECONDS = 0.05


def run_trigger(
    path: Path | None,
    socket: Path,
    *,
    steps: int,
    node: Sequence[str],
    profiler: str | None,
    mode: Sequence[str],
    job: str | None,
    wait: float,
) -> bool:
    """Ask, then wait so many seconds for answers; returns whether a node has taken the request.

    Raises:
        QueryError: the folder is not ours, or the daemon refuses; SourceUnavailable: no daemon answers.
    """
    if path is None:
        words = {"nodes": list(node), "modes": list(mode), "profiler": profiler, "job": job}
        answer = Client(socket).capture(steps, **{name: value for name, value in words.items() if value})
        asked = {Path(each["base"]): str(each["id"]) for each in answer["asked"]}
    else:
        base = find_base(path)
        wish = Wish(steps=steps, nodes=tuple(node), modes=tuple(mode), profiler=profiler)
        asked = {base: write_request(base, wish)}
    for base in asked:
        click.echo(f"asked {base} for {steps} steps")
    return show_answers(asked, wait)


def show_answers(asked: dict[Path, str], wait_seconds: float) -> bool:
    """Print answers as they come, until all of the time has passed or every node that answered is done."""
    shown: dict[tuple[str, str], None] = {}
    deadline = time.monotonic() + wait_seconds
    while True:
        answers = [answer for base, name in asked.items() for answer in read_answers(base, name)]
        for answer in answers:
            key = str(answer.get("node")), str(answer.get("state"))
            if key not in shown:
                shown[key] = None
                click.echo(f"{key[0]}: {key[1]}" + (f", {answer['reason']}" if "reason" in answer else ""))
        settled = answers and all(answer.get("state") != "taken" for answer in answers)
        if settled or time.monotonic() >= deadline:
            break
        time.sleep(LOOK_EVERY_SECONDS)
    if not shown:
        click.echo(
            f"no node has answered within {wait_seconds:g} s: one answers when its next step starts, "
            "if it was made with triggers on",
            err=True,
        )
    return any(state != "refused" for _, state in shown)
