"""When a job has ended for Prometheus; and that a restart knows it."""

from __future__ import annotations

from monitor.catalog import Catalog, SeriesKey
from monitor.endings import Endings, closed_jobs, loaded
from monitor.index import Index
from tests.test_index import Recorded, add

LOOP = "train-1-stepstart-1000000.0_train-1-stepend-2000000.0"
LATER = "train-2-stepstart-5000000.0_train-2-stepend-6000000.0"
CLOSED = "train-1-stepend-2000000.0_posthookclose-*-end-3000000.0"


def who(job: str, node: str = "0-a") -> SeriesKey:
    return SeriesKey(job=job, framework="pytorch", profiler="cprofile", node=node)


def index_of(*spans: tuple[SeriesKey, str]) -> Index:
    index = Index(Catalog())
    add(index, [Recorded(series, name) for series, name in spans])
    return index


def test_a_job_is_closed_when_the_newest_span_of_every_node_ends_with_the_hook() -> None:
    index = index_of(
        (who("whole", "0-a"), CLOSED),
        (who("whole", "0-a"), LOOP),
        (who("whole", "1-b"), CLOSED),
        (who("half", "0-a"), CLOSED),
        (who("half", "1-b"), LOOP),
        (who("again"), CLOSED),
        (who("again"), LATER),
        (who("open"), LOOP),
    )
    assert closed_jobs(index) == {"whole"}


def test_a_closed_job_ends_sooner_than_one_that_fell_silent() -> None:
    index = index_of((who("closed"), CLOSED), (who("silent"), LOOP))
    endings = Endings(keep_ended_seconds=10, keep_silent_seconds=100)
    assert endings.ended(index, 1000.0) == set()
    assert endings.ended(index, 1009.9) == set()
    assert endings.ended(index, 1010.0) == {"closed"}
    assert endings.ended(index, 1100.0) == {"closed", "silent"}


def test_time_counts_from_the_newest_profile() -> None:
    index = index_of((who("job"), LOOP), (who("other"), LOOP))
    endings = Endings(keep_ended_seconds=10, keep_silent_seconds=10)
    endings.ended(index, 1000.0)
    add(index, [Recorded(who("job"), LATER)])
    assert endings.ended(index, 1009.0) == set()
    assert endings.ended(index, 1018.0) == {"other"}
    assert endings.ended(index, 1019.0) == {"job", "other"}
    add(index, [Recorded(who("other"), LATER)])
    assert endings.ended(index, 2000.0) == {"job"}


def test_zero_keeps_series_for_ever() -> None:
    index = index_of((who("closed"), CLOSED), (who("silent"), LOOP))
    endings = Endings(keep_ended_seconds=0, keep_silent_seconds=0)
    endings.ended(index, 0.0)
    assert endings.ended(index, 1e12) == set()


def test_a_restart_goes_on_counting_and_sees_what_came_since() -> None:
    index = index_of((who("over"), CLOSED), (who("more"), CLOSED))
    before = Endings(keep_ended_seconds=10, keep_silent_seconds=10)
    before.ended(index, 1000.0)
    kept = before.dumped()
    add(index, [Recorded(who("more"), LATER)])
    after = Endings(keep_ended_seconds=10, keep_silent_seconds=10, arrivals=loaded(kept))
    assert after.ended(index, 1011.0) == {"over"}
    assert after.ended(index, 1020.9) == {"over"}
    assert after.ended(index, 1021.0) == {"over", "more"}


def test_a_store_that_knows_nothing_counts_from_now() -> None:
    index = index_of((who("closed"), CLOSED))
    endings = Endings(keep_ended_seconds=10, arrivals=loaded(None))
    assert endings.ended(index, 1e9) == set()
    assert endings.ended(index, 1e9 + 10) == {"closed"}
