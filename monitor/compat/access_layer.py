"""Stands in for `smdebug.core.access_layer.utils`."""

from __future__ import annotations

from monitor.compat.core import is_s3

__all__ = ["is_s3"]
