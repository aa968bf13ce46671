"""How results look in a notebook. Text to HTML, nothing else; whatever comes from a profile is escaped."""

from __future__ import annotations

import html

import pandas as pd

SHOWN_ROWS = 20


def to_notebook_html(title: str, frame: pd.DataFrame, of: int) -> str:
    """Render a heading and a table.

    Args:
        of: how many rows there are in all.
    """
    more = f" (first {len(frame)} of {of:,})" if of > len(frame) else ""
    table = frame.to_html(index=False, border=0, escape=True, float_format=lambda value: f"{value:.6g}")
    return f"<div><p><b>{html.escape(title)}</b>{more}</p>{table}</div>"


def spans_title(what: str, spans: int, from_seconds: float | None, to_seconds: float | None) -> str:
    """Say what a result is about, in plain numbers with units."""
    title = f"{what} of {spans:,} {'span' if spans == 1 else 'spans'}"
    if from_seconds is not None and to_seconds is not None:
        begin = pd.Timestamp(from_seconds, unit="s", tz="UTC").strftime("%Y-%m-%d %H:%M:%S")
        title += f", {to_seconds - from_seconds:.6g} s from {begin} UTC"
    return title
