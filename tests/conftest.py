"""What all tests share: two real clusters, started on first use, and the seed of this run."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from xdist.remote import Producer

import jobs
import sparkonce
from sparkonce.local import LocalKafka, LocalPostgres
from sparkonce.local.java import short_lived_variable
from together import Together, group_of, needs_three_brokers

os.environ.update(short_lived_variable())

# Kept in the environment for the processes that share this run's tests.
_SEED = int(os.environ.setdefault("SPARKONCE_SEED", str(random.SystemRandom().randrange(2**32))))

# Tests write records of any time, and a broker looks for old ones half a minute after its start.
_KEEP = {"log.retention.ms": "-1"}


def pytest_report_header() -> str:
    return f"seed: {_SEED} (repeat this run with SPARKONCE_SEED={_SEED})"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Together:
    return Together(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the files: first those that may take long."""
    if not hasattr(config, "workerinput"):
        return
    longest: dict[str, float] = {}
    for item in items:
        marked = item.get_closest_marker("timeout")
        allowed_s = marked.args[0] if marked else 0
        group = group_of(item.path)
        longest[group] = max(longest.get(group, 0), allowed_s)
    items.sort(key=lambda item: -longest[group_of(item.path)])


@pytest.fixture
def seed() -> int:
    """The run's seed, printed again beside the output of a test that fails."""
    print(f"SPARKONCE_SEED={_SEED}")
    return _SEED


@pytest.fixture(scope="session")
def _one_broker() -> Iterator[LocalKafka]:
    with LocalKafka(brokers=1, properties=_KEEP) as cluster:
        yield cluster


@pytest.fixture
def kafka(_one_broker: LocalKafka) -> Iterator[LocalKafka]:
    """A cluster of one broker, shared by all tests: use topics of your own."""
    yield _one_broker
    _heal(_one_broker)


@pytest.fixture
def kafka3() -> Iterator[LocalKafka]:
    """A cluster of three, shared by the files that need one; whole again after each test."""
    cluster = _three_brokers.running()
    yield cluster
    try:
        _heal(cluster)
    except BaseException:
        _three_brokers.stop()  # the next test gets new ones
        raise


class _ThreeBrokers:
    """Started for the first test that needs them, stopped behind the last file of their group."""

    def __init__(self) -> None:
        self._cluster: LocalKafka | None = None

    def running(self) -> LocalKafka:
        if self._cluster is None:
            self._cluster = LocalKafka(brokers=3, properties=_KEEP).start()
        return self._cluster

    def stop(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.stop()


_three_brokers = _ThreeBrokers()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Not for the whole session: at rest they take a twentieth of a core."""
    if nextitem is None or not needs_three_brokers(nextitem.path):
        _three_brokers.stop()


def pytest_sessionfinish() -> None:
    _three_brokers.stop()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all tests that may share it."""
    os.environ["SPARKONCE_HISTORY"] = ""
    # Python workers import what jobs are made of.
    # The same sources as here, wherever another tree of the project is installed.
    sources = [Path(jobs.__file__).parent, Path(sparkonce.__file__).parents[1]]
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, sources))
    spark = sparkonce.session("tests", "local[2]")
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    """A server shared by all tests: use a schema of your own."""
    with LocalPostgres() as server:
        yield server


@pytest.fixture
def postgres_schema(postgres: LocalPostgres) -> Iterator[str]:
    """A name to put tables under; all of it goes with the test."""
    name = f"s_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
        yield name
        # A test that failed may have left a transaction open: say so, don't wait for its end.
        connection.execute("SET lock_timeout = '10s'")
        connection.execute(f"DROP SCHEMA {name} CASCADE")


def _heal(cluster: LocalKafka) -> None:
    for broker in cluster.broker_ids:
        if cluster.is_broker_alive(broker):
            cluster.resume_broker(broker)
        else:
            cluster.start_broker(broker)
    cluster.wait_until_healthy()
