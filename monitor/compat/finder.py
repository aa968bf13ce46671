"""Finds the stand-ins for smdebug's modules. Owns `sys.meta_path`'s one entry and the order of who comes first."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from monitor.errors import MonitorError

ORIGINAL = "smdebug"
STANDINS: Mapping[str, str] = {
    "smdebug.core.access_layer.utils": "monitor.compat.access_layer",
    "smdebug.core.utils": "monitor.compat.core",
    "smdebug.profiler.analysis.python_profile_analysis": "monitor.compat.python_profile_analysis",
    "smdebug.profiler.analysis.utils.python_profile_analysis_utils": "monitor.compat.python_profile_analysis_utils",
    "smdebug.profiler.profiler_constants": "monitor.compat.profiler_constants",
    "smdebug.profiler.python_profile_utils": "monitor.compat.python_profile_utils",
    "smdebug.profiler.python_profiler": "monitor.compat.python_profiler",
}
"""Module of the original -> module of ours that holds the same public names."""

PACKAGES = frozenset(
    ".".join(parts[:length]) for parts in (name.split(".") for name in STANDINS) for length in range(1, len(parts))
)


class ShadowedWarning(UserWarning):
    """An installed smdebug is passed over for the stand-ins of this project."""


class StandInLoader(Loader):
    """Fills a module of the original's name with ours."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Have the import system make the module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Give it the public names; a package stays empty."""
        source = STANDINS.get(module.__name__)
        if source is None:
            module.__doc__ = f"A stand-in of phasewatch for {module.__name__}."
            return
        ours = importlib.import_module(source)
        names: list[str] = ours.__all__
        module.__dict__.update({name: getattr(ours, name) for name in names})
        module.__doc__, module.__dict__["__all__"] = ours.__doc__, names


class StandInFinder(MetaPathFinder):
    """Answers for smdebug and all below it, so that nothing is half theirs and half ours."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a stand-in.

        Raises:
            ModuleNotFoundError: the module is one of smdebug's that has none; says which there are.
        """
        if fullname != ORIGINAL and not fullname.startswith(f"{ORIGINAL}."):
            return None
        if fullname not in STANDINS and fullname not in PACKAGES:
            raise ModuleNotFoundError(
                f"{fullname} is no part of what phasewatch stands in for, which is smdebug's Python profiling: "
                f"{', '.join(STANDINS)}",
                name=fullname,
            )
        return ModuleSpec(fullname, StandInLoader(), origin="phasewatch", is_package=fullname in PACKAGES)


def install(*, warn: Callable[[str], None] | None = None) -> None:
    """Make `import smdebug…` find this project's stand-ins. Doing it again changes nothing.

    Args:
        warn: told where a real smdebug is installed, which is then passed over; by default a ShadowedWarning.

    Raises:
        MonitorError: the real smdebug is imported already, so its classes and ours would be mixed.
    """
    if any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
        return
    loaded = sys.modules.get(ORIGINAL)
    if loaded is not None:
        raise MonitorError(
            f"smdebug is imported already, from {getattr(loaded, '__file__', None) or 'an unknown place'}: "
            "call monitor.compat.install() before the first import of it"
        )
    real = installed_original()
    if real is not None:
        message = f"smdebug {real} is installed; `import smdebug` now gives phasewatch's stand-ins instead"
        if warn is None:
            warnings.warn(message, ShadowedWarning, stacklevel=2)
        else:
            warn(message)
    sys.meta_path.insert(0, StandInFinder())


def uninstall() -> None:
    """Take the stand-ins away, and forget those that were imported."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, StandInFinder)]
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if spec is not None and isinstance(spec.loader, StandInLoader):
            del sys.modules[name]


def installed_original() -> str | None:
    """Return the version and place of a real smdebug, or None."""
    spec = importlib.util.find_spec(ORIGINAL)
    if spec is None:
        return None
    try:
        version = importlib.metadata.version(ORIGINAL)
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    return f"{version} ({spec.origin or 'no file'})"
