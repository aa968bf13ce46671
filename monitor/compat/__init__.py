"""The import paths of smdebug, made to lead here: an unmodified notebook or script of the Python profiling part runs.

    import monitor.compat
    monitor.compat.install()

or, for a script that is not changed at all, `python -m monitor.compat SCRIPT [ARGUMENTS]`.
"""

from __future__ import annotations

from monitor.compat.finder import install, uninstall

__all__ = ["install", "uninstall"]
