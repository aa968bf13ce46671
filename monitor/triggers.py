"""Asking running jobs to profile their next steps: finds the base folder, writes the request, reads the answers. The
other end is monitor.capture, which the daemon never imports; what both share are the files' names in the layout."""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from monitor.errors import QueryError, ReadError
from monitor.layout import ANSWER_FILE, REQUEST_FILE
from monitor.reading import LocalFile, read_file

EXPIRES_SECONDS = 3600.0
LARGEST_ANSWER_BYTES = 4096
MOST_STEPS = 1_000_000
FRAMEWORK_FOLDER = "framework"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to profile.

    Attributes:
        steps: how many, counted from the next one that starts.
        nodes, modes: only these; empty is all.
        profiler: None is what each capture was made with.
    """

    steps: int
    nodes: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    profiler: str | None = None


def find_base(path: Path) -> Path:
    """Return the folder that holds framework/, which is the given one, one above it or one below it.

    Raises:
        QueryError: there is none; nothing was ever written there.
    """
    path = path.absolute()
    parts = path.parts
    if FRAMEWORK_FOLDER in parts:
        place = len(parts) - 1 - parts[::-1].index(FRAMEWORK_FOLDER)
        return Path(*parts[:place])
    if (path / FRAMEWORK_FOLDER).is_dir():
        return path
    below = sorted(found.parent for found in path.glob(f"*/{FRAMEWORK_FOLDER}") if found.is_dir())
    if len(below) == 1:
        return below[0]
    if path.is_dir() and not below:
        return path  # a job that profiles no step until it is asked has written nothing yet
    found = ", ".join(map(str, below[:5])) or "no such folder"
    raise QueryError(
        f"{path} is no base folder: name the one that holds {FRAMEWORK_FOLDER}/ ({found})", status=404, code="not_found"
    )


def write_request(base: Path, wish: Wish) -> str:
    """Leave a request in a base folder; returns its id. Blocks.

    Raises:
        QueryError: the base folder belongs to somebody else, or cannot be written to.
    """
    name = secrets.token_hex(8)
    now = time.time()
    document = {"id": name, "created": now, "expires": now + EXPIRES_SECONDS, **fields_of(wish)}
    path = base / REQUEST_FILE
    beside = base / f".{REQUEST_FILE}.{name}"
    try:
        owner = base.stat()
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), 0o644)  # whatever the umask: captures refuse what others may write to
                if os.fstat(file.fileno()).st_uid != owner.st_uid:
                    os.fchown(file.fileno(), owner.st_uid, owner.st_gid)  # only root may
                file.write(json.dumps(document))
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise QueryError(
            f"cannot leave a request in {base}: {error.strerror}; only the owner of the folder can ask",
            status=403,
            code="not_allowed",
        ) from error
    return name


def fields_of(wish: Wish) -> dict[str, object]:
    """Write a wish as the request's fields."""
    fields = asdict(wish)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items() if value}


def read_answers(base: Path, name: str) -> list[dict[str, object]]:
    """Return what nodes answered to a request so far, and what they refused since. Blocks."""
    answers: list[dict[str, object]] = []
    for path in sorted(base.glob(ANSWER_FILE.format(node="*"))):
        try:
            answer = json.loads(read_file(LocalFile(str(path), os.path.realpath(base)), LARGEST_ANSWER_BYTES).data)
        except (ReadError, ValueError, RecursionError):
            continue  # half gone, or not ours
        if isinstance(answer, dict) and answer.get("id") == name:
            answers.append(answer)
    return answers
