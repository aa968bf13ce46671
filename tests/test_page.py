"""Pages put together from parts: in both formats, compressed, filtered; what is kept, is kept."""

from __future__ import annotations

import gzip
import zlib

import pytest

from monitor.answers import PageWish
from monitor.exposition import Head
from monitor.page import DAEMON, SMALL_BYTES, Family, Part, Sheet, gzipped, page_of

PROFILES = Head(name="profiles", kind="counter", help='Said in "quotes" and \\.')
SPANS = Head(name="span_seconds", kind="histogram", help="Lengths.")
LAG = Head(name="lag_seconds", kind="gauge", help="Age.")


def sheet() -> Sheet:
    spans = b'span_seconds_bucket{training_job="a",le="+Inf"} 2\nspan_seconds_count{training_job="a"} 2\n'
    families = (
        Family(
            head=PROFILES,
            parts={
                "a": Part(b'profiles_total{training_job="a"} 2.0\n'),
                "b": Part(b'profiles_total{training_job="b"} 3\n'),
            },
        ),
        Family(head=SPANS, parts={"a": Part(spans)}),
        Family(head=LAG, parts={DAEMON: Part(b"lag_seconds 0.5\n")}),
    )
    return Sheet(families=families, ended=frozenset())


def page(wish: PageWish) -> str:
    return page_of(sheet().chosen(wish), wish).decode()


def names(wish: PageWish) -> list[str]:
    return [line.split(" ")[0] for line in page(wish).splitlines() if not line.startswith("#")]


ALL = [
    'profiles_total{training_job="a"}',
    'profiles_total{training_job="b"}',
    'span_seconds_bucket{training_job="a",le="+Inf"}',
    'span_seconds_count{training_job="a"}',
    "lag_seconds",
]


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (PageWish(), ALL),
        (PageWish(job="a"), [ALL[0], *ALL[2:4]]),
        (PageWish(job="c"), []),
        (PageWish(daemon=True), ALL[4:]),
        (PageWish(names=frozenset({"profiles_total"})), ALL[:2]),
        (PageWish(names=frozenset({"profiles"})), ALL[:2]),
        (PageWish(names=frozenset({"span_seconds"})), ALL[2:4]),
        (PageWish(names=frozenset({"span_seconds_count"})), ALL[3:4]),
        (PageWish(names=frozenset({"span_seconds_sum"})), []),
        (PageWish(names=frozenset({"lag_seconds", "profiles"}), job="b"), ALL[1:2]),
        (PageWish(names=frozenset({"no_such"})), []),
    ],
)
def test_a_page_holds_what_is_wanted(wish: PageWish, expected: list[str]) -> None:
    assert names(wish) == expected


def test_families_without_samples_are_left_out() -> None:
    assert page(PageWish(names=frozenset({"no_such"}))) == ""
    assert page(PageWish(names=frozenset({"no_such"}), openmetrics=True)) == "# EOF\n"
    assert page(PageWish(job="b")).count("# TYPE") == 1


def test_formats_differ_in_heads_and_the_end() -> None:
    assert page(PageWish(job="b")) == (
        '# HELP profiles_total Said in "quotes" and \\\\.\n# TYPE profiles_total counter\n'
        'profiles_total{training_job="b"} 3\n'
    )
    assert page(PageWish(job="b", openmetrics=True)) == (
        '# HELP profiles Said in \\"quotes\\" and \\\\.\n# TYPE profiles counter\n'
        'profiles_total{training_job="b"} 3\n# EOF\n'
    )


def test_large_and_small_parts_are_one_gzip_stream() -> None:
    large = [bytes([65 + place]) * (SMALL_BYTES + place) for place in range(3)]
    texts = [b"small", large[0], large[1], b"", b"x" * (SMALL_BYTES - 1), b"between", large[2], b"end"]
    for chosen in (texts, texts[:1], texts[1:2], []):
        packed = gzipped([Part(text) for text in chosen])
        assert gzip.decompress(packed) == b"".join(chosen)
        whole = zlib.decompressobj(zlib.MAX_WBITS | 16)  # as browsers and clients do: one member, nothing after it
        assert whole.decompress(packed) == b"".join(chosen)
        assert whole.eof
        assert not whole.unused_data


def test_a_large_part_is_compressed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    large = Part(b"large" * SMALL_BYTES)
    first = gzipped([large, Part(b"before")])
    seen: list[int] = []
    compress = zlib.compressobj

    def counted(level: int, method: int, bits: int) -> object:
        seen.append(level)
        return compress(level, method, bits)

    monkeypatch.setattr("monitor.page.zlib.compressobj", counted)
    again = gzipped([large, Part(b"after")])
    assert len(seen) == 1
    assert (gzip.decompress(first)[-6:], gzip.decompress(again)[-5:]) == (b"before", b"after")
