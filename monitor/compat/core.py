"""Stands in for `smdebug.core.utils`: what scripts of the profiling part take from it."""

from __future__ import annotations

from enum import Enum

from monitor.capture.nodes import default_node

__all__ = ["FRAMEWORK", "get_node_id", "is_s3"]

S3_SCHEME = "s3://"


class FRAMEWORK(Enum):
    """The frameworks whose names are folders."""

    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"
    MXNET = "mxnet"
    XGBOOST = "xgboost"


def is_s3(path: str) -> tuple[bool, str | None, str | None]:
    """Tell whether a path is in S3: (True, bucket, key) or (False, None, None)."""
    if not path.startswith(S3_SCHEME):
        return False, None, None
    bucket, _, key = path.removeprefix(S3_SCHEME).partition("/")
    return True, bucket, key


def get_node_id() -> str:
    """Name this process: rank, or else process id, and host."""
    return default_node()
