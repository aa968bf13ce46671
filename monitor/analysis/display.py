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
        title += f", {to_seconds - from_seconds:.6g} s from {moment_of(from_seconds)}"
    return title


def moment_of(seconds: float) -> str:
    """Show a time since the epoch; one past the calendar, as from a writer with another unit, as a number."""
    try:
        return pd.Timestamp(seconds, unit="s", tz="UTC").strftime("%Y-%m-%d %H:%M:%S") + " UTC"
    except (ValueError, OverflowError, NotImplementedError):
        return f"{seconds:.0f} s"
