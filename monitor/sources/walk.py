"""Finding new span folders below a root, by folder gates. Synchronous and single-threaded; the time is passed in.

Each folder above the spans has a gate: it is listed again only when its modification time has changed. Files made in
the same tick as a listing leave that time as it was, and network file systems keep time in whole seconds by a clock of
their own; so a gate is trusted only when a listing began at least `TRUST_SECONDS` after its time was first seen.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from time import perf_counter

from monitor.errors import LayoutError
from monitor.layout import DATA_FILES, PROFILER_FOLDERS, SpanKey, data_file
from monitor.logs import log_once
from monitor.sources.base import FileRef
from monitor.sources.mounts import keeps_local_time
from monitor.spans import parse_legacy_name, parse_span_name

logger = logging.getLogger("phasewatch.source")

TRUST_SECONDS = 2.0
OLD_SECONDS = 60.0
"""A gate whose time is older than this by the local clock is trusted at once: clocks of file systems differ by less,
and a full scan finds what they hid after all."""
OLD_LOCAL_SECONDS = 0.1
"""The same where the local clock stamps the files: a tick of it is 10 ms at most."""
DEEPEST = 8
LONGEST_PAUSE_SECONDS = 30.0
LISTING_SHARE = 0.2
"""A folder that changes all the time is listed again only when its last listing was at most this share of the time."""
WATCHED_LISTING_SHARE = 0.01
"""The same where file-system events name new entries anyway."""


@dataclass(slots=True, kw_only=True)
class Folder:
    """One folder above the spans, and its gate.

    Attributes:
        path: where it is; places: its last three components, by which the layout is told; depth: below the root.
        seen: names of span folders handed over. folders: folders below it that are walked.
        passed: names that mean nothing here, or are refused; counted once, looked at again at each full scan.
        modified_ns, first_seen: the modification time at the last look, and when it was first seen.
        settled: the last listing began so long after `first_seen` that the gate may be trusted.
        listed: when it was last listed, and how long that took.
        linked: it is a link. identity: (device, inode) of what the path led to at the last look.
        passed_over: the last scan took it elsewhere, or refused it; what it is changes with the folder above it only.
        undecided: it holds spans whose profiler only a file inside can tell; look_again: when, whatever the gate says.
    """

    path: str
    depth: int
    linked: bool = False
    identity: tuple[int, int] = (0, 0)
    look_again: float = float("inf")
    pause: float = 0.5
    undecided: bool = False
    passed_over: bool = False
    seen: set[str] = field(default_factory=set)
    folders: dict[str, Folder] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)
    counted: set[str] = field(default_factory=set)
    modified_ns: int = -1
    first_seen: float = float("-inf")
    settled: bool = False
    listed: float = float("-inf")
    listing_seconds: float = 0.0
    places: tuple[str, str, str] = ("", "", "")

    def __post_init__(self) -> None:
        first, second, third = ["", "", *self.path.split("/")][-3:]
        self.places = (first, second, third)


class Walker:
    """Walks one root. Not for two threads at a time.

    Args:
        root: a base folder of the layout, or a folder above or below one; it may not exist yet.
    """

    def __init__(self, root: Path) -> None:
        self._given = root
        self._root: Folder | None = None
        self._by_path: dict[str, Folder] = {}
        self._refused: set[str] = set()
        self._wall = float("-inf")
        self._local: dict[int, bool] = {}
        self.available = False
        self._was_there: tuple[int, int] | None = None
        self.spans_seen = self.ignored_names = self.refused_links = self.unreadable_folders = 0
        self.unreadable: dict[str, str] = {}
        self.listings = 0
        self.listing_seconds = 0.0

    # -- looking ---------------------------------------------------------------------------------------------------

    def scan(
        self, now: float, *, wall: float = float("-inf"), watched: bool = False, everything: bool = False
    ) -> Iterator[list[FileRef]]:
        """Give the new spans of each folder that has changed.

        Args:
            now: monotonic seconds.
            wall: seconds since the epoch, to tell an old gate by.
            watched: events name new entries, so that busy folders may be listed rarely.
            everything: list each folder whose gate does not hold, however recently it was listed.
        """
        self._wall = wall
        root = self._current_root()
        if root is None:
            return
        waiting = deque([root])
        visited: set[tuple[int, int]] = set()
        while waiting:
            folder = waiting.pop()
            found = self._look(folder, now, visited, watched=watched, everything=everything)
            if found is None:
                continue
            if found:
                yield found
            for below in folder.folders.values():
                # Links last: what has a real place is taken there, and nothing is taken twice.
                if below.linked:
                    waiting.appendleft(below)
                else:
                    waiting.append(below)

    def holds(self) -> bool:
        """Tell, by looking at the gates only, that a scan would find nothing new."""
        if self._root is None:
            return False
        # The root as it was given comes first: where it is a link, it may have been switched.
        looks = chain(((str(self._given), self._root),), self._by_path.items())
        for path, folder in looks:
            if folder.passed_over:
                continue
            try:
                status = os.stat(path)  # noqa: PTH116 - this is the whole cost of a question that finds nothing new
            except OSError:
                return False
            shut = folder.settled and not folder.undecided and status.st_mtime_ns == folder.modified_ns
            if not shut or (status.st_dev, status.st_ino) != folder.identity:
                return False
        return True

    def distrust(self) -> None:
        """Let the next scan list every folder: a full scan catches what gates may have missed."""
        for folder in self.folders():
            folder.settled = False
            folder.modified_ns = -1
            folder.passed.clear()

    def take_event(self, path: str) -> list[FileRef]:
        """Take a path that an event named: give its span if it is a new one, else open the gate of its folder."""
        parent, _, name = path.rpartition("/")
        folder = self._by_path.get(parent)
        if folder is None or name in folder.seen or not name.isprintable():
            return []
        if not os.path.isdir(path) or os.path.islink(path):  # noqa: PTH112, PTH114 - Path raises
            return []  # a link is judged when its folder is listed
        ref = self._span_ref(folder, name)
        if ref is None:
            folder.listed = float("-inf")
            folder.settled = False
            return []
        return self._hand_over(folder, [ref])

    @property
    def root_path(self) -> str:
        """The root without links, as of the last scan."""
        return "" if self._root is None else self._root.path

    def folders(self) -> list[Folder]:
        """Return all folders above the spans that are known now; events are matched with them until the next call."""
        found = [] if self._root is None else [self._root]
        for folder in found:
            found.extend(folder.folders.values())
        self._by_path = {folder.path: folder for folder in found}
        return found

    # -- inside ----------------------------------------------------------------------------------------------------

    def _current_root(self) -> Folder | None:
        """Return the root, anew where the configured path leads elsewhere than before (a link that was switched)."""
        real, before = os.path.realpath(self._given), self.available
        self.available = os.path.isdir(real)  # noqa: PTH112 - Path.is_dir raises where a parent cannot be read
        if not self.available:
            self._note_absence(before, real)
            self._root = None
            return None
        if self._root is None or self._root.path != real:
            if not before and self._was_there is not None:
                logger.warning("%s is there again; what is new in it is read", real)
            self._root = Folder(path=real, depth=0)
        return self._root

    def _note_absence(self, before: bool, real: str) -> None:
        if self._was_there is None:
            log_once(logger, f"absent:{real}", "%s is not there yet; waiting for it", real, level=logging.WARNING)
        elif before:
            logger.warning("%s is gone; waiting for it to come back, what was stored stays", real)

    def _look(
        self, folder: Folder, now: float, visited: set[tuple[int, int]], *, watched: bool, everything: bool
    ) -> list[FileRef] | None:
        """Return new spans; None for a folder that must not be walked, which leads out or was walked already."""
        try:
            status = os.stat(folder.path)  # noqa: PTH116 - for each folder at each poll
        except OSError as error:
            self._lose(folder, error)
            return []
        modified_ns, identity = status.st_mtime_ns, (status.st_dev, status.st_ino)
        folder.passed_over = identity in visited or (
            identity != folder.identity and not self._take_identity(folder, identity)
        )
        if folder.passed_over:
            return None
        visited.add(identity)
        if modified_ns != folder.modified_ns:
            folder.modified_ns, folder.first_seen, folder.settled = modified_ns, now, False
        if folder.settled and now < folder.look_again:
            return []
        share = WATCHED_LISTING_SHARE if watched else LISTING_SHARE
        if not everything and now - folder.listed < folder.listing_seconds / share:
            return []
        return self._list(folder, now)

    def _take_identity(self, folder: Folder, identity: tuple[int, int]) -> bool:
        """Begin anew with a folder that is another one than before, if it lies below the root."""
        folder.seen.clear()
        folder.folders.clear()
        folder.settled = False
        folder.modified_ns = -1
        folder.listed = float("-inf")
        folder.identity = (0, 0)
        root = self._root.path if self._root is not None else ""
        if not f"{os.path.realpath(folder.path)}/".startswith(f"{root.rstrip('/')}/"):
            if folder.path not in self._refused:
                self._refused.add(folder.path)
                self.refused_links += 1
            log_once(
                logger,
                f"link:{folder.path}",
                "refused %s: it leads out of %s",
                folder.path,
                root,
                level=logging.WARNING,
            )
            return False
        self._refused.discard(folder.path)
        folder.identity = identity
        if folder is self._root:
            if self._was_there not in (None, identity):
                logger.warning(
                    "%s is another folder than before (mounted, unmounted or replaced); what is new in it is read",
                    folder.path,
                )
            self._was_there = identity
        return True

    def _list(self, folder: Folder, now: float) -> list[FileRef]:
        started = perf_counter()
        folder.undecided = False
        try:
            with os.scandir(folder.path) as entries:
                refs, names = self._sort_entries(folder, entries)
        except OSError as error:
            self._lose(folder, error)
            return []
        for known in (folder.seen, folder.passed, folder.counted):
            known &= names
        self.unreadable.pop(folder.path, None)
        for gone in folder.folders.keys() - names:
            self.unreadable.pop(folder.folders.pop(gone).path, None)
        old = self._wall - folder.modified_ns / 1e9 >= self._old_seconds(folder)
        folder.settled = old or now - folder.first_seen >= TRUST_SECONDS
        folder.pause = min(2 * folder.pause, LONGEST_PAUSE_SECONDS) if folder.undecided else 0.5
        folder.look_again = now + folder.pause if folder.undecided else float("inf")
        folder.listed = now
        folder.listing_seconds = perf_counter() - started
        self.listings += 1
        self.listing_seconds += folder.listing_seconds
        return self._hand_over(folder, refs)

    def _old_seconds(self, folder: Folder) -> float:
        device = folder.identity[0]
        if device not in self._local:
            self._local[device] = keeps_local_time(device)
        in_whole_seconds = folder.modified_ns % 1_000_000_000 == 0  # as some file systems keep all times
        return OLD_LOCAL_SECONDS if self._local[device] and not in_whole_seconds else OLD_SECONDS

    def _sort_entries(self, folder: Folder, entries: Iterator[os.DirEntry[str]]) -> tuple[list[FileRef], set[str]]:
        """Tell new spans and new folders from the rest; also returns all names, which tell what has gone."""
        refs: list[FileRef] = []
        names: set[str] = set()
        for entry in entries:
            name = entry.name
            names.add(name)
            if name in folder.seen or name in folder.folders or name in folder.passed:
                continue
            ref = self._judge(folder, entry)
            if ref is not None:
                refs.append(ref)
            elif name not in folder.folders and not looks_like_span(name):
                folder.passed.add(name)
        return refs, names

    def _judge(self, folder: Folder, entry: os.DirEntry[str]) -> FileRef | None:
        """Return the span that an entry stands for, or take it up as a folder to walk, or count it as neither."""
        name = entry.name
        if name.startswith("."):
            return None
        if not is_folder(entry) or not name.isprintable():
            self._pass(folder, name)
            return None
        if entry.is_symlink() and not self._leads_inside(entry.path):
            if name not in folder.counted:
                self.refused_links += 1
            folder.counted.add(name)
            folder.passed.add(name)
            return None
        ref = self._span_ref(folder, name)
        if ref is None and folder.depth < DEEPEST and not looks_like_span(name):
            folder.folders[name] = Folder(path=entry.path, depth=folder.depth + 1, linked=entry.is_symlink())
        elif ref is None:
            self._pass(folder, name)
        return ref

    def _pass(self, folder: Folder, name: str) -> None:
        """Count a name that means nothing here, once."""
        if name not in folder.counted and name not in DATA_FILES:
            self.ignored_names += 1
        folder.counted.add(name)

    def _span_ref(self, folder: Folder, name: str) -> FileRef | None:
        """Return what a folder entry stands for if it is a span folder with the places above it that the layout
        needs."""
        if not looks_like_span(name):
            return None
        try:
            if name[:1].isdigit():
                span, node = parse_legacy_name(name)
                framework, profiler_folder = folder.places[1:]
            else:
                span = parse_span_name(name)
                framework, profiler_folder, node = folder.places
        except LayoutError as error:
            log_once(logger, f"name:{folder.path}/{name}", "ignored a folder: %s", error.reason, level=logging.WARNING)
            return None
        if not (framework.isprintable() and node.isprintable()):
            return None  # names that are no text cannot be told to anybody
        profiler = PROFILER_FOLDERS.get(profiler_folder) or self._profiler_inside(f"{folder.path}/{name}")
        if profiler is None:
            folder.undecided = True
            return None
        key = SpanKey(framework=framework or "unknown", profiler=profiler, node=node or "unknown", span=name)
        return FileRef(key=key, span=span, path=f"{folder.path}/{name}/{data_file(profiler)}")

    def _profiler_inside(self, path: str) -> str | None:
        """Tell the profiler by the file that lies in a span folder, where no folder's name tells it."""
        for name, profiler in DATA_FILES.items():
            if os.path.exists(f"{path}/{name}"):  # noqa: PTH110 - Path raises
                return profiler
        return None

    def _hand_over(self, folder: Folder, refs: list[FileRef]) -> list[FileRef]:
        folder.seen.update(ref.key.span for ref in refs)
        refs.sort(key=lambda ref: ref.span.start.time_us)  # neighbours in time become neighbours in the store
        self.spans_seen += len(refs)
        return refs

    def _leads_inside(self, path: str) -> bool:
        """Tell whether a link stays below the root without leading to a folder above itself."""
        real = os.path.realpath(path)
        root = self._root.path if self._root is not None else ""
        inside = real.startswith(f"{root}/") and not f"{path}/".startswith(f"{real}/")
        if not inside:
            log_once(
                logger, f"link:{path}", "refused the link %s: it leads out of %s", path, root, level=logging.WARNING
            )
        return inside

    def _lose(self, folder: Folder, error: OSError) -> None:
        """Forget what lay in a folder that is gone, or complain of one that cannot be read."""
        folder.modified_ns = -1
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            self.unreadable.pop(folder.path, None)
            folder.seen.clear()
            folder.folders.clear()
            return
        self.unreadable_folders += 1
        self.unreadable[folder.path] = f"cannot be listed: {error.strerror}"
        log_once(
            logger, f"folder:{folder.path}", "cannot list %s: %s", folder.path, error.strerror, level=logging.WARNING
        )


def looks_like_span(name: str) -> bool:
    """Tell cheaply whether a name can be a span folder's: START_END, or the older START_END_NODE_STEP."""
    return (name.count("-") >= 6 and "_" in name) or (name[:1].isdigit() and name.count("_") >= 3)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Tell whether an entry is a folder or leads to one; one that vanishes meanwhile is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False
