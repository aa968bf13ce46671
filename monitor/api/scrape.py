"""What Prometheus asks: /metrics, in the format that its headers choose, and /sd, the jobs as targets of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec
from aiohttp import web

from monitor.answers import Engine, PageWish
from monitor.api.parameters import JOB, Parameter, Values, shortened, switch
from monitor.errors import QueryError

METRICS_PATH, SD_PATH = "/metrics", "/sd"
PLAIN_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
OPENMETRICS_VERSIONS = ("", "1.0.0")
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(:\d{1,5})?")
MOST_NAMED = 10

PARAMETERS = (
    replace(JOB, repeated=False, help="Only this job's series."),
    Parameter(
        name="daemon",
        read=switch,
        schema={"type": "boolean", "default": False},
        help="Only what the daemon tells of itself.",
    ),
    Parameter(
        name="name[]",
        read=str,
        schema={"type": "string"},
        help="Only samples or families with this name.",
        repeated=True,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scraping:
    """The handlers.

    Attributes:
        target: HOST:PORT that /sd gives out; "" for where it was asked.
        address: gives HOST:PORT of the server, "" where it has none.
    """

    engine: Engine
    target: str
    address: Callable[[], str]

    async def metrics(self, request: web.Request) -> web.Response:
        """Serve a page as it was last drawn."""
        wish = wish_of(request)
        if wish.job is not None and wish.job not in (known := self.engine.metrics_jobs()):
            names = ", ".join([*known][:MOST_NAMED]) + (", …" if len(known) > MOST_NAMED else "")
            message = f"no job {shortened(wish.job)}; there are: {names or 'none yet'}"
            raise QueryError(message, parameter="job", status=404, code="not_found")
        page = drawn(await self.engine.metrics_page(wish))
        headers = {
            "Content-Type": OPENMETRICS_TYPE if wish.openmetrics else PLAIN_TYPE,
            "Vary": "Accept, Accept-Encoding",
        }
        return web.Response(body=page, headers=headers | ({"Content-Encoding": "gzip"} if wish.gzip else {}))

    async def targets(self, request: web.Request) -> web.Response:
        """Serve the daemon itself and each job that has series as targets, for http_sd_configs."""
        Values(list(request.query.items()), ())
        drawn(await self.engine.metrics_page(PageWish(daemon=True)))  # an empty list would end all targets at a start
        shared = {"__scheme__": request.scheme, "__metrics_path__": METRICS_PATH}
        labels = [{"__param_daemon": "true"}]
        labels += [
            {"__param_job": job, "__meta_phasewatch_job": job}
            for job, shown in self.engine.metrics_jobs().items()
            if shown
        ]
        target = self.target or asked_address(request) or self.address()
        if not HOST.fullmatch(target):
            raise QueryError("no address is known at which Prometheus can scrape: set metrics.target", code="no_target")
        body = msgspec.json.encode([{"targets": [target], "labels": shared | each} for each in labels])
        return web.Response(body=body, headers={"Content-Type": "application/json"})


def drawn(page: bytes | None) -> bytes:
    """Return a page that there is."""
    if page is None:
        raise QueryError("the first page is not drawn yet; try again", status=503, code="starting")
    return page


def wish_of(request: web.Request) -> PageWish:
    """Read which page is wanted."""
    values = Values(list(request.query.items()), PARAMETERS)
    job, daemon = values.get("job"), bool(values.get("daemon"))
    if daemon and job is not None:
        raise QueryError("daemon=true and job exclude each other", parameter="daemon")
    return PageWish(
        job=None if job is None else str(job),
        daemon=daemon,
        names=frozenset(values.all("name[]")),
        openmetrics=openmetrics_wanted(header(request, "Accept")),
        gzip=any(name == "gzip" and quality > 0 for name, _, quality in ranges(header(request, "Accept-Encoding"))),
    )


def asked_address(request: web.Request) -> str:
    """Return HOST:PORT at which a request over TCP was made, "" for one over the unix socket."""
    over_tcp = request.transport is not None and isinstance(request.transport.get_extra_info("sockname"), tuple)
    return request.headers.get("Host", "") if over_tcp else ""


def header(request: web.Request, name: str) -> str:
    """Return a header that may be given several times."""
    return ",".join(request.headers.getall(name, []))


def openmetrics_wanted(accept: str) -> bool:
    """Tell whether OpenMetrics 1.0 is wanted at least as much as Prometheus's own format."""
    openmetrics = plain = 0.0
    for name, parameters, quality in ranges(accept):
        if name == "application/openmetrics-text" and parameters.get("version", "") in OPENMETRICS_VERSIONS:
            openmetrics = max(openmetrics, quality)
        elif name == "text/plain":
            plain = max(plain, quality)
    return openmetrics > 0 and openmetrics >= plain


def ranges(accept: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Read what a header accepts, with how much it is wanted: 0 for not at all."""
    for part in accept.lower().split(","):
        name, *pairs = (word.strip() for word in part.split(";"))
        words = (pair.partition("=") for pair in pairs)
        parameters = {key.strip(): value.strip(' "') for key, _, value in words}
        try:
            quality = float(parameters.get("q", "1"))
        except ValueError:
            quality = 0.0
        yield name, parameters, quality
