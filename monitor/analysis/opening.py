"""Chooses what answers a notebook: a folder, a bucket or a daemon; refuses places that cannot be meant."""

from __future__ import annotations

import stat
from pathlib import Path

from monitor.analysis.answering import Answering
from monitor.analysis.folder import open_folder
from monitor.analysis.inside import SourceAnswers
from monitor.errors import ArgumentError, ConfigError
from monitor.s3_url import parse_s3_url

DEFAULT_JOB = "notebook"


def open_answers(
    local_profile_dir: str | Path, s3_path: str | None, socket: str | Path | None, job: str | None
) -> Answering:
    """Choose what answers."""
    if socket is not None:
        if s3_path is not None:
            raise ArgumentError("s3_path", s3_path, f"must be left out with socket={str(socket)!r}: the daemon answers")
        if not isinstance(socket, (str, Path)):
            raise ArgumentError("socket", socket, "must be the path of a daemon's socket")
        from monitor.analysis.remote import DaemonAnswers  # loads an HTTP client: only who asks a daemon needs it

        return DaemonAnswers(socket, job)
    if not isinstance(local_profile_dir, (str, Path)):
        raise ArgumentError("local_profile_dir", local_profile_dir, "must be a path")
    if job is not None and not job:
        raise ArgumentError("job", job, "must be a name")
    try:
        root = Path(local_profile_dir).expanduser().absolute()  # a notebook may change its folder later
        if s3_path is not None:
            return open_bucket_answers(s3_path, root, job or DEFAULT_JOB)
        check_folder(root)
    except (OSError, RuntimeError, ValueError) as error:  # no such user, a name that is too long, no access, a zero
        reason = getattr(error, "strerror", None) or str(error)
        raise ArgumentError("local_profile_dir", str(local_profile_dir), f"cannot be looked at: {reason}") from error
    return SourceAnswers(open_folder(root, job or DEFAULT_JOB), str(root))


def check_folder(root: Path) -> None:
    """Refuse what is no folder."""
    if not stat.S_ISDIR(look(root)):
        raise ArgumentError("local_profile_dir", str(root), "is a file; give the folder of profiles")


def look(root: Path) -> int:
    """Return what kind of thing a path is."""
    try:
        return root.stat().st_mode
    except FileNotFoundError:
        allowed = "does not exist; give the folder of profiles"
        raise ArgumentError("local_profile_dir", str(root), allowed) from None


def open_bucket_answers(s3_path: str, local_folder: Path, job: str) -> Answering:
    """Answer from a bucket, keeping what is downloaded in a local folder."""
    if not isinstance(s3_path, str):
        raise ArgumentError("s3_path", s3_path, "must be s3://bucket/prefix")
    try:
        url = parse_s3_url(s3_path)
    except ConfigError as error:
        raise ArgumentError("s3_path", s3_path, str(error)) from None
    if local_folder.exists() and not local_folder.is_dir():
        raise ArgumentError("local_profile_dir", str(local_folder), "is a file; give a folder for what is downloaded")
    from monitor.analysis.bucket import open_bucket  # costs half a second: only who reads a bucket pays

    return SourceAnswers(open_bucket(url, job, local_folder), str(url))
