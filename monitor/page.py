"""The metrics page in parts: the sample lines of each family and job, which scrapes put together. Pure.

A part is written when its job has something new, and compressed when the first scrape asks for that; both are kept
until the part is replaced. So a page of 20,000 series of which nothing has changed costs a scrape no rendering and no
compression, whatever job, format and families it asks for.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import pack

from monitor.answers import PageWish
from monitor.exposition import Head, encoded, picked_lines

DAEMON = ""
"""Stands where a job's name does, for what belongs to none: the daemon's own families."""

SMALL_BYTES = 8_192
"""Smaller parts are compressed together, afresh: alone they would become larger, not smaller."""
LEVEL = 6
GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"
DEFLATE_END = b"\x03\x00"
EOF = b"# EOF\n"


class Part:
    """Some lines of a page. Compared by identity: the same part is the same text."""

    __slots__ = ("_deflated", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._deflated: bytes | None = None

    def deflated(self) -> bytes:
        """Return the lines compressed, ready to follow others; takes long the first time."""
        if self._deflated is None:
            self._deflated = deflated(self.text)
        return self._deflated


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family of a page, with its sample lines by job."""

    head: Head
    parts: Mapping[str, Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """All that there was to show at one moment.

    Attributes:
        ended: jobs whose series have ended.
    """

    families: tuple[Family, ...]
    ended: frozenset[str]

    def chosen(self, wish: PageWish) -> list[tuple[Head, tuple[Part, ...]]]:
        """Return the parts that a page is made of, family by family."""
        job = DAEMON if wish.daemon else wish.job
        found = []
        for family in self.families:
            if not wish.names or wish.names & {family.head.name, *family.head.sample_names}:
                picked = family.parts.values() if job is None else [family.parts[job]] if job in family.parts else []
                parts = tuple(part for part in picked if part.text)
                found += [(family.head, parts)] if parts else []
        return found


def page_of(chosen: Iterable[tuple[Head, tuple[Part, ...]]], wish: PageWish) -> bytes:
    """Put a page together. Takes long where parts are compressed for the first time."""
    pieces: list[Part] = []
    for head, whole in chosen:
        parts = whole
        if wish.names and not wish.names & {head.name, head.plain_name}:  # some samples of it, such as …_count
            parts = tuple(Part(picked_lines(part.text, wish.names)) for part in whole)
        pieces += [Part(encoded(head.text(openmetrics=wish.openmetrics))), *parts]
    if wish.openmetrics:
        pieces.append(Part(EOF))
    return gzipped(pieces) if wish.gzip else b"".join(piece.text for piece in pieces)


def gzipped(pieces: Iterable[Part]) -> bytes:
    """Return several pieces as one gzip stream, of which large ones are compressed once and for all."""
    checksum, size = 0, 0
    out, small = [GZIP_HEAD], bytearray()
    for piece in pieces:
        checksum, size = zlib.crc32(piece.text, checksum), size + len(piece.text)
        if len(piece.text) < SMALL_BYTES:
            small += piece.text
        else:
            out += [deflated(small), piece.deflated()]
            small = bytearray()
    return b"".join([*out, deflated(small), DEFLATE_END, pack("<II", checksum, size & 0xFFFFFFFF)])


def deflated(text: bytes | bytearray) -> bytes:
    """Compress without looking back at what came before, and end on a whole byte, as RFC 1951 allows."""
    if not text:
        return b""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(text) + packer.flush(zlib.Z_FULL_FLUSH)
