"""Which folders of a prefix lead to profiles: what listings with a delimiter tell, and which to list next. Pure.

Below a folder that holds `framework/` only that one is entered. A folder named as a profiler holds nodes, or in the
older layout spans.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from monitor.layout import PROFILER_FOLDERS, is_span_folder

Kind: TypeAlias = Literal["above", "profiler", "node", "spans"]
"""`spans` is a profiler's folder of the older layout, which holds spans themselves."""

DEEPEST = 8
LEGACY_FOLDER = "cProfile"


class Tree:
    """The folders that are known below one prefix.

    Args:
        root: the prefix, empty or with its slash.

    Attributes:
        folders: prefix -> what it is; in the order in which they were found.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.folders: dict[str, Kind] = {}
        self._add(root)

    def of_kind(self, *kinds: Kind) -> list[str]:
        """Return the folders of some kinds."""
        return [prefix for prefix, kind in self.folders.items() if kind in kinds]

    def to_list(self) -> list[str]:
        """Return the folders in which others may appear, those that lead to profiles first."""
        leading = self.leading()
        return sorted(self.of_kind("above", "profiler"), key=lambda prefix: (prefix not in leading, prefix.count("/")))

    def leading(self) -> set[str]:
        """Return the folders below which there are profilers' folders, and these."""
        found: set[str] = set()
        for prefix in self.of_kind("profiler", "spans"):
            while len(prefix) >= len(self.root) and prefix not in found:
                found.add(prefix)
                prefix = prefix.rstrip("/").rpartition("/")[0] + "/" if "/" in prefix.rstrip("/") else ""
        return found

    def tops(self) -> list[str]:
        """Return the folders whose keys together are all that belong to profiles."""
        kind = self.folders.get(self.root)
        return [self.root] if kind in ("node", "profiler", "spans") else self.of_kind("profiler", "spans")

    def listed(self, parent: str, children: Iterable[str]) -> list[str]:
        """Take the folders that a listing of `parent` told; returns those that are new."""
        names = {child.rstrip("/").rpartition("/")[2]: child for child in children}
        if self.folders.get(parent) == "profiler" and any(
            name[:1].isdigit() and is_span_folder(name) for name in names
        ):
            self.folders[parent] = "spans"
            return [parent]
        if "framework" in names:
            names = {"framework": names["framework"]}
        return [child for child in names.values() if child not in self.folders and self._add(child)]

    def saw(self, node: str) -> None:
        """Note a node's folder that a key named."""
        if node not in self.folders:
            self.folders[node] = "node"

    def _add(self, prefix: str) -> bool:
        kind = kind_of(prefix)
        if kind is None or prefix.count("/") - self.root.count("/") > DEEPEST:
            return False
        self.folders[prefix] = kind
        return True


def kind_of(prefix: str) -> Kind | None:
    """Tell what a folder is by its name and the one above it; None for a span's."""
    above, _, name = ("/" + prefix.rstrip("/")).rpartition("/")
    parent = above.rpartition("/")[2]
    if name == LEGACY_FOLDER:
        return "spans"
    if name in PROFILER_FOLDERS:
        return "profiler"
    if name and is_span_folder(name):
        return None
    return "node" if parent in PROFILER_FOLDERS and parent != LEGACY_FOLDER else "above"
