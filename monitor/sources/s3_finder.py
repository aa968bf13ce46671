"""Finding new spans in a bucket: carries out what windows, tree and full pass plan, and hands over what is new.

A look lists the folders that lead to profiles, the windows in which something is going on, and a few of all others in
turn; then as many pages of the full pass as are due. Every span is handed over before it is remembered, so that
whoever cancels loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from time import time as wall_clock
from typing import NamedTuple

import anyio

from monitor.s3_url import S3Url
from monitor.sources.base import Accept, FileRef
from monitor.sources.pacing import Pacer
from monitor.sources.s3_client import MOST_KEYS, Bucket
from monitor.sources.s3_events import Created
from monitor.sources.s3_listing import ListedObject, ListPage, Sorter
from monitor.sources.s3_pass import FullPass
from monitor.sources.s3_tree import Tree
from monitor.sources.s3_windows import LAST, Covered, NodeWindows

LIST_ATTEMPTS = 4
NEWS_SECONDS = 120.0
"""Where something was new within this time, each look lists."""
NEXT_SECONDS = 1_800.0
"""The same for the place where the next span of a node should appear."""
COLD_A_LOOK = 3
MOST_PAGES_WITHOUT_NEWS = 6
MOST_FOLDERS_A_LEVEL = 1_000
STATE_VERSION = 1


class Task(NamedTuple):
    """One thing to list: a window of a node, or with an empty mode the modes that a node has."""

    node: str
    mode: str


class Finder:
    """Finds new spans below one prefix. Its methods are for one task, which it may share out among children.

    Args:
        every_seconds: between two full passes.

    Attributes:
        listings, listing_seconds: requests, and the time they took, waiting included.
        lag_seconds: age of the newest object among the last that a window showed as new.
        keys_seen: keys that were listed; spans_seen: spans handed over as new.
        changed: rises when there is something new to keep of `dump`.
    """

    def __init__(self, bucket: Bucket, pacer: Pacer, url: S3Url, *, every_seconds: float) -> None:
        self._bucket = bucket
        self._pacer = pacer
        self._tree = Tree(url.prefix)
        self._nodes: dict[str, NodeWindows] = {}
        self._pass = FullPass(every_seconds=every_seconds)
        self._looked: dict[Task | str, float] = {}
        self._untaken: dict[str, None] = {}
        self._fresh = True
        self._accept: Accept | None = None
        self.sorter = Sorter(url.bucket)
        self.listings = self.keys_seen = self.spans_seen = self.changed = 0
        self.listing_seconds = self.lag_seconds = 0.0

    @property
    def folders(self) -> int:
        """How many folders above the spans are known."""
        return len(self._tree.folders)

    @property
    def passes(self) -> tuple[int, int]:
        """How many pages the full pass has had, and about how many it will have."""
        return self._pass.pages, self._pass.last_pages

    def use(self, accept: Accept) -> None:
        """Say who takes what is found."""
        self._accept = accept

    async def look(self, *, everything: bool) -> None:
        """Look once.

        Args:
            everything: look at all windows and not only where something is going on.

        Raises:
            RequestFailed: a listing failed; what was found before is handed over.
        """
        everything = everything or self._fresh
        new_nodes = await self._explore(everything=everything)
        if self._pass.completed:
            self._untaken.update(dict.fromkeys(new_nodes))
            await self._take_untaken()
            await self._look_at_windows(everything=everything)
            await self._take_untaken()
        await self._go_on_with_pass()
        self._fresh = False

    async def take_keys(self, created: Sequence[Created]) -> list[FileRef]:
        """Hand over the spans among some objects that somebody else told of; returns those of this prefix."""
        mine = [
            ListedObject(key, 0, 0.0)
            for bucket, key in created
            if bucket == self._bucket.name and key.startswith(self._tree.root)
        ]
        refs = self.sorter.refs_of(mine)
        await self._hand_over(refs)
        return refs

    def forget(self, ref: FileRef) -> None:
        """Take a span that is gone for one that was never seen."""
        self._node(folder_of(ref)).forget(ref.span)

    def dump(self) -> str:
        """Return all cursors as text."""
        nodes = {prefix: node.dump() for prefix, node in self._nodes.items()}
        return json.dumps([STATE_VERSION, self._tree.root, self._pass.dump(), nodes, list(self._untaken)])

    def load(self, text: str) -> None:
        """Take the cursors of a run before; those of another version or prefix are of no use, and are passed over."""
        version, root, full, nodes, untaken = json.loads(text)
        if version != STATE_VERSION or root != self._tree.root:
            return
        self._untaken.update(dict.fromkeys(untaken))
        self._pass.load(full)
        for prefix, saved in nodes.items():
            self._node(prefix).load(saved)

    # -- folders ---------------------------------------------------------------------------------------------------

    async def _explore(self, *, everything: bool) -> list[str]:
        """List folders in which others may appear, and those found on the way; returns new folders of nodes."""
        before = set(self._tree.folders)
        listed: set[str] = set()
        while todo := [prefix for prefix in self._folders_to_list(before, everything) if prefix not in listed]:
            todo = todo[:MOST_FOLDERS_A_LEVEL]
            listed.update(todo)
            async with anyio.create_task_group() as group:
                for prefix in todo:
                    group.start_soon(self._list_folder, prefix)
        new = [prefix for prefix in self._tree.of_kind("node", "spans") if prefix not in before]
        return [prefix for prefix in new if prefix not in self._nodes]

    def _folders_to_list(self, before: set[str], everything: bool) -> list[str]:
        leading = self._tree.leading()
        prefixes = self._tree.to_list()
        if everything:
            return prefixes
        cold = [prefix for prefix in prefixes if prefix in before and prefix not in leading]
        cold.sort(key=lambda prefix: self._looked.get(prefix, float("-inf")))
        rest = set(cold[COLD_A_LOOK:])
        return [prefix for prefix in prefixes if prefix not in rest]

    async def _list_folder(self, prefix: str) -> None:
        self._looked[prefix] = anyio.current_time()
        token = ""
        while True:
            page = await self._list(prefix, token=token, delimiter="/")
            self._tree.listed(prefix, page.folders)
            token = page.token
            if not token or self._tree.folders.get(prefix) == "spans":
                return

    # -- windows ---------------------------------------------------------------------------------------------------

    async def _look_at_windows(self, *, everything: bool) -> None:
        tasks = self._tasks(anyio.current_time(), everything=everything)
        async with anyio.create_task_group() as group:
            for task in tasks:
                group.start_soon(self._find_modes if not task.mode else self._scan, task)

    def _tasks(self, now: float, *, everything: bool) -> list[Task]:
        """Choose what to list: where something is going on, and a few of the others, longest not listed first."""
        hot: list[Task] = []
        cold: list[Task] = []
        for prefix, node in self._nodes.items():
            awaited = now - node.news < NEXT_SECONDS
            for mode, window in node.modes.items():
                busy = now - window.news < NEWS_SECONDS or (awaited and node.is_next(mode))
                (hot if busy else cold).append(Task(prefix, mode))
            unknown = not node.modes or (awaited and node.next_is_unknown)
            (hot if unknown else cold).append(Task(prefix, ""))
        if everything:
            return hot + cold
        cold.sort(key=lambda task: self._looked.get(task, float("-inf")))
        return hot + cold[:COLD_A_LOOK]

    async def _find_modes(self, task: Task) -> None:
        """Take all spans of modes that were never seen in a node."""
        self._looked[task] = anyio.current_time()
        node = self._node(task.node)
        if self._tree.folders.get(task.node) == "spans":
            return
        page = await self._list(task.node, delimiter="-")
        for prefix in page.folders:
            mode = prefix.removeprefix(task.node).removesuffix("-")
            if mode.isalpha() and mode not in node.modes:
                self._untaken[prefix] = None

    async def _scan(self, task: Task) -> None:
        """List the windows of one mode, until there is no more to expect."""
        self._looked[task] = anyio.current_time()
        node = self._node(task.node)
        window = node.window(task.mode)
        covered = Covered()
        listed: set[str] = set()
        idle = 0
        while idle < MOST_PAGES_WITHOUT_NEWS:
            for scan in window.plan(node.expected(task.mode)):
                after = covered.rest(scan)
                if after is not None:
                    break
            else:
                break
            most = MOST_KEYS if covered.stretches else min(window.first_page_keys, MOST_KEYS)
            page = await self._list(scan.prefix, after=after, most=most)
            refs = self.sorter.refs_of(page.objects)
            listed.update(ref.key.span for ref in refs)
            covered.add(after, page.objects[-1].key if page.token else f"{scan.prefix}{LAST}")
            news = [ref for ref in refs if node.is_news(ref.span)]
            await self._hand_over(news)
            if news:
                paths = {self.sorter.key_of(ref) for ref in news}
                newest = max(found.modified for found in page.objects if found.key in paths)
                self.lag_seconds = max(0.0, wall_clock() - newest)
            idle = 0 if news else idle + 1
        window.confirm(covered.stretches, listed)

    # -- whole prefixes --------------------------------------------------------------------------------------------

    async def _take_untaken(self) -> None:
        """List everything below prefixes that are new; one that fails stays for the next look."""
        for prefix in list(self._untaken):
            await self._take_all(prefix)
            if prefix in self._tree.folders:
                self._node(prefix)  # also where it holds no span yet
            del self._untaken[prefix]
            self.changed += 1

    async def _take_all(self, prefix: str) -> None:
        """List everything below a prefix."""
        token = ""
        while True:
            page = await self._list(prefix, token=token)
            await self._hand_over(self._unknown(page.objects))
            token = page.token
            if not token:
                return

    async def _go_on_with_pass(self) -> None:
        self._pass.begin_if_due(wall_clock())
        while self._pass.due(wall_clock()):
            place = self._pass.next(self._tree.tops())
            if place is None:
                self.changed += 1
                return
            prefix, after = place
            page = await self._list(prefix, after=after)
            await self._hand_over(self._unknown(page.objects), counted=not self._pass.completed)
            self._pass.listed(page.objects[-1].key if page.objects else after, more=bool(page.token))
            self.changed += 1

    def _unknown(self, objects: Sequence[ListedObject]) -> list[FileRef]:
        return [ref for ref in self.sorter.refs_of(objects) if not self._node(folder_of(ref)).knows(ref.span)]

    # -- common ----------------------------------------------------------------------------------------------------

    async def _hand_over(self, refs: list[FileRef], *, counted: bool = True) -> None:
        """Pass on spans, then remember them."""
        if self._accept is None:
            raise RuntimeError("the source does not run")
        if not refs:
            return
        await self._accept(refs)
        now = anyio.current_time()
        for ref in refs:
            self._node(folder_of(ref)).note(ref.span, now)
        self.spans_seen += len(refs) if counted else 0
        self.changed += 1

    def _node(self, prefix: str) -> NodeWindows:
        node = self._nodes.get(prefix)
        if node is None:
            node = self._nodes[prefix] = NodeWindows(prefix)
            self._tree.saw(prefix)
        return node

    async def _list(
        self, prefix: str, *, after: str = "", token: str = "", delimiter: str = "", most: int = MOST_KEYS
    ) -> ListPage:
        started = perf_counter()
        ask = partial(self._bucket.list_page, prefix, after=after, token=token, delimiter=delimiter, most=most)
        try:
            page = await self._pacer.ask("list", ask, attempts=LIST_ATTEMPTS)
        finally:
            self.listings += 1
            self.listing_seconds += perf_counter() - started
        self.keys_seen += len(page.objects)
        return page


def folder_of(ref: FileRef) -> str:
    """Return the key prefix of the folder in which a span's folder lies."""
    return ref.path.split("/", 3)[3].rsplit("/", 2)[0] + "/"
