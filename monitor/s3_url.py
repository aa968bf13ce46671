"""Places in S3 as they are written: s3://bucket/prefix. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from monitor.errors import ConfigError


class S3Url(NamedTuple):
    """A folder in a bucket. `prefix` is empty or ends with a slash."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


def is_wild(part: str) -> bool:
    """Tell whether a prefix, or a part of one, is a pattern: stands for several."""
    return any(sign in part for sign in "*?[")


def without_password(text: str) -> str:
    """Hide what stands for a user and password in the URLs of a text."""
    return re.sub(r"(://)[^/@\s]*@", r"\1…@", text)


def parse_s3_url(text: str) -> S3Url:
    """Read s3://bucket/prefix.

    Raises:
        ConfigError: says what is wrong with it.
    """
    scheme, separator, rest = text.partition("://")
    shown = without_password(text)
    if scheme != "s3" or not separator:
        raise ConfigError(f"{shown!r} is no place in S3: write s3://bucket/prefix")
    bucket, _, prefix = rest.partition("/")
    if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9._:-]{1,254}", bucket):
        raise ConfigError(
            f"{shown!r} names no bucket: write s3://bucket/prefix, the bucket with letters, digits, . or -"
        )
    if not prefix.isprintable():
        raise ConfigError(f"the prefix in {shown!r} holds characters that cannot be printed")
    prefix = prefix.strip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise ConfigError(
            f"the prefix in {shown!r} has an empty part, . or ..: S3 takes them for names, write it without"
        )
    return S3Url(bucket, f"{prefix}/" if prefix else "")
