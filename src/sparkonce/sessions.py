"""A SparkSession with Spark's Kafka connector on board: where a pipeline begins.

Stands above `local`, which finds Java and fetches the connector's jars. First the JVM is launched,
because only Spark's own launcher knows what the environment, `spark-defaults.conf` and
`PYSPARK_SUBMIT_ARGS` say; what they leave open is filled in with defaults that suit one machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from sparkonce.errors import ConfigError
from sparkonce.local.cache import cache_dir, put
from sparkonce.local.jars import CONNECTOR, resolve
from sparkonce.local.java import find_java
from sparkonce.local.spark import spark_archive

_LOOPBACK = "127.0.0.1"
_CONNECTOR_CLASS = "org/apache/spark/sql/kafka010/KafkaSourceProvider.class"
_CONNECTOR_MODULE = CONNECTOR.coordinates[0].name

_DEFAULTS = {
    # A second attempt of a task that still runs can't write exactly once.
    "spark.speculation": "false",
    # Timestamps mean the same on every machine.
    "spark.sql.session.timeZone": "UTC",
    # Over TCP, each small task waits 40 ms for an acknowledgement that is held back.
    "spark.python.unix.domain.socket.enabled": str(
        # Their paths may have 107 bytes, of which PySpark's own part takes some 40.
        hasattr(socket, "AF_UNIX") and len(os.fsencode(tempfile.gettempdir())) <= 60
    ).lower(),
    # Names the state of each attempt by an id, so that nobody else's is ever read; with a log of
    # changes, so that a batch writes what it changed, and not all of its state.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

# Warnings and errors only, and none of the warnings that every start has and nobody can heed:
# no native Hadoop, a host name that is a loopback address, settings that a Kafka client ignores.
_LOG4J2 = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.hadoop.name = org.apache.hadoop.util.NativeCodeLoader
logger.hadoop.level = error
logger.hostname.name = org.apache.spark.util.Utils
logger.hostname.level = error
logger.admin.name = org.apache.kafka.clients.admin.AdminClientConfig
logger.admin.level = error
logger.consumer.name = org.apache.kafka.clients.consumer.ConsumerConfig
logger.consumer.level = error
"""


def session(
    name: str, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A SparkSession that can read from and write to Kafka.

    `name` is the application's name, which Spark shows and checkpoints don't depend on. `master`
    is where to run: `local[*]` (the default: all cores of this machine, in this process's JVM),
    `spark://host:port`, `yarn`, ... Left out, it is what `spark-submit --master`,
    `spark-defaults.conf`, `PYSPARK_SUBMIT_ARGS` or the variable `MASTER` say.

    `conf` has Spark's own settings and wins over all others, over `master` too. Only `spark.jars`
    is added to: the connector's jars, fetched on first use, stand behind yours (unless
    `spark.jars.packages` names the connector).

    Where driver and executors share this machine (`local`, `local-cluster`, a standalone master
    on the loopback address) the session listens on the loopback address only, executors run this
    Python (unless `PYSPARK_PYTHON` or `spark.pyspark.python` name another), and a shuffle has as
    many partitions as there are cores. Everywhere: no web UI, no progress bar, UTC, no speculation,
    and the state of new streaming queries in RocksDB.

    If a session runs in this process already, that one is returned as it is, whatever the
    arguments say: Spark has one context a process.

    Raises ConfigError if a running session or a JVM that is already there (under `spark-submit`)
    lacks the connector, and with Spark Connect; LocalError if Java or the jars can't be had.
    """
    given = dict(conf or {})
    if master is not None:
        given.setdefault("spark.master", master)
    _refuse_connect(given)
    if SparkContext._active_spark_context is not None:
        _require_connector("The SparkSession that runs in this process")
        return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # under spark-submit, which has launched the JVM
        SparkContext._ensure_initialized()
    elif SparkContext._gateway is None:
        _launch_jvm(given)
    _require_connector("The JVM of this process, which ran before session() was called,")
    settings = _fill_in(name, given, launched=dict(SparkConf().getAll()))
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    # Of these two, PySpark heeds only the variable.
    with _environment({"PYSPARK_PYTHON": settings.get("spark.pyspark.python")}):
        return builder.getOrCreate()


def connector_packages() -> str:
    """The connector's Maven coordinates, for `--packages` or `spark.jars.packages`."""
    return ",".join(
        f"{each.organisation}:{each.name}:{each.revision}" for each in CONNECTOR.coordinates
    )


def _refuse_connect(given: Mapping[str, str]) -> None:
    asked_for = (
        is_remote()
        or "SPARK_REMOTE" in os.environ
        or "spark.remote" in given
        or given.get("spark.master", "").startswith("sc://")
        or given.get("spark.api.mode", os.environ.get("SPARK_API_MODE")) == "connect"
    )
    if asked_for:
        raise ConfigError(
            "Spark Connect was asked for (SPARK_REMOTE, SPARK_API_MODE, spark.remote, "
            "spark.api.mode or a master sc://...), or a session of it is running. sparkonce runs "
            "its transactions in the driver, and with Connect the driver is on the server. Use a "
            "classic session: leave those settings out, and give a master such as local[*] or "
            "spark://host:port."
        )


def _launch_jvm(given: Mapping[str, str]) -> None:
    """Start PySpark's JVM: on the right Java, with what can't be changed once it runs."""
    progress_bar = "spark.ui.showConsoleProgress"  # the launcher would switch it on
    settings = {progress_bar: _DEFAULTS[progress_bar], **given}
    if _CONNECTOR_MODULE not in settings.get("spark.jars.packages", ""):
        own = [jar for jar in settings.get("spark.jars", "").split(",") if jar]
        settings["spark.jars"] = ",".join([*own, *(jar.as_uri() for jar in resolve(CONNECTOR))])
    java = find_java()
    # Who has an installation of Spark, or a folder of settings, has set up Java and logging there.
    if not os.environ.keys() & {"SPARK_HOME", "SPARK_CONF_DIR"}:
        quiet = f"-Dlog4j2.configurationFile={_log_settings().as_uri()}"
        options = " ".join([quiet, *spark_archive(java).options()])
        settings.setdefault("spark.driver.extraJavaOptions", options)
    launch_conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    python = os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable)
    with _environment({"JAVA_HOME": str(java.home), "PYSPARK_DRIVER_PYTHON": python}):
        SparkContext._ensure_initialized(conf=launch_conf)


def _fill_in(name: str, given: Mapping[str, str], launched: Mapping[str, str]) -> dict[str, str]:
    """All settings of the session: what was given, else what the JVM was told, else defaults."""
    told = {**launched, "spark.app.name": name, **given}
    jars = f"{launched.get('spark.jars', '')},{given.get('spark.jars', '')}".split(",")
    told["spark.jars"] = ",".join(dict.fromkeys(jar for jar in jars if jar))
    if "PYSPARK_PYTHON" in os.environ:
        told.setdefault("spark.pyspark.python", os.environ["PYSPARK_PYTHON"])
    settings = {**_DEFAULTS, **_one_machine(told["spark.master"]), **told}
    if settings.get("spark.pyspark.python") == sys.executable:
        # Executors that run this Python have this package too.
        settings.setdefault("spark.python.daemon.module", "sparkonce.stream.daemon")
    return settings


def _require_connector(what: str) -> None:
    assert SparkContext._jvm is not None  # it was launched, by us or by spark-submit
    loader = SparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if loader.getResource(_CONNECTOR_CLASS) is None:
        raise ConfigError(
            f"{what} has no Kafka connector, and a JVM that runs can't be given one. Either call "
            "sparkonce.session() before anything else starts Spark, or add the connector where "
            f'that happens: SparkSession.builder.config("spark.jars.packages", '
            f'"{connector_packages()}"), or spark-submit --packages {connector_packages()}'
        )


def _one_machine(master: str) -> dict[str, str]:
    """Defaults that only hold where driver and executors share this machine."""
    if not re.match(r"local\b|spark://(127\.0\.0\.1|localhost)\b", master):
        return {}
    return {
        **_own_executors(master),
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.pyspark.python": sys.executable,
        "spark.sql.shuffle.partitions": str(_core_count(master)),
    }


def _own_executors(master: str) -> dict[str, str]:
    """For executors that are JVMs of their own on this machine, not part of the driver's."""
    if re.match(r"local(\[|$)", master):
        return {}
    return {"spark.executor.extraJavaOptions": " ".join(spark_archive(find_java()).options())}


def _core_count(master: str) -> int:
    if master == "local":
        return 1
    if threads := re.match(r"local\[(\d+)", master):
        return int(threads[1])
    if cluster := re.match(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)", master):
        return int(cluster[1]) * int(cluster[2])
    return os.cpu_count() or 1


def _log_settings() -> Path:
    # Named after its content: another version of sparkonce gets a file of its own.
    digest = hashlib.sha256(_LOG4J2.encode()).hexdigest()[:16]
    path = cache_dir() / "spark" / f"log4j2-{digest}.properties"
    if not path.exists():
        put(path, _LOG4J2.encode())
    return path


@contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables for as long as PySpark looks; what the program had is put back."""
    former = {key: os.environ.get(key) for key in variables}
    _set_environment(variables)
    try:
        yield
    finally:
        _set_environment(former)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for key, value in variables.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
