"""The composition root: builds every part from the settings, runs them in one task tree, stops them in order.

Outer group: signals and the server. Inner group: sources, ingest, metrics page, progress; it is cancelled first, ingest
finishes the batch in hand, then the server stops, then the totals are saved and the store closes. A reload rebuilds the
inner group and leaves server, index and store alone.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus

import monitor
from monitor.api.server import Server, open_server
from monitor.budgets import Budgets
from monitor.checkpoint import load_index
from monitor.config import Settings
from monitor.decoding import DecodePool
from monitor.errors import ConfigError, StoreError
from monitor.index import Index
from monitor.ingest import Ingest
from monitor.metrics import MetricsPage
from monitor.queries import Queries
from monitor.rows import SpanRows
from monitor.sources.base import FileRef, Source
from monitor.sources.local import LocalSource
from monitor.store import Store, open_store
from monitor.upkeep import Retention, Upkeep
from monitor.watchers import Watchers

logger = logging.getLogger("phasewatch.daemon")

STORE_FILE = "phasewatch.duckdb"
STOP_SECONDS = 4.0
"""Stopping may take this long before what is left is cancelled; systemd and people expect an answer within 5 s."""
