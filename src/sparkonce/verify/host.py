"""The process in which pipelines under test run: `python -m sparkonce.verify.host JSON`.

It is killed and started again by the verifier. Jobs that may share a process run side by side, each
in a thread; how each ends is told at the gate.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import traceback
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkonce.verify.child import end_with_parent, tell_where_on_signal
from sparkonce.verify.contract import Job, Pipeline
from sparkonce.verify.gate import START, Pass

APPLICATIONS = "spark-applications"
"""A file in the folder for temporary ones: by which names Spark's cluster knows this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One job of a host."""

    program: str
    job: Job
    own_pass: Pass

    def to_json(self) -> dict[str, Any]:
        fields = asdict(replace(self.job, observe=_told_later))
        del fields["observe"]
        return {"program": self.program, "job": fields, "pass": asdict(self.own_pass)}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Assignment:
        address, trial, life = (told["pass"][key] for key in ("address", "trial", "life"))
        own_pass = Pass((address[0], address[1]), trial, life)
        fields = told["job"] | {"output_topics": tuple(told["job"]["output_topics"])}
        return cls(program=told["program"], job=Job(**fields, observe=own_pass), own_pass=own_pass)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """All that a host is told."""

    assignments: tuple[Assignment, ...]
    master: str
    """Where Spark runs, if it is wanted."""
    conf: dict[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        each = [assignment.to_json() for assignment in self.assignments]
        return json.dumps({"assignments": each, "master": self.master, "conf": self.conf})

    @classmethod
    def parse(cls, text: str) -> Order:
        told = json.loads(text)
        each = tuple(Assignment.from_json(assignment) for assignment in told["assignments"])
        return cls(assignments=each, master=told["master"], conf=told["conf"])


def main() -> None:
    order = Order.parse(sys.argv[1])
    end_with_parent()
    tell_where_on_signal()
    pipelines = [Pipeline.load(each.program) for each in order.assignments]
    spark = None
    if any(pipeline.spark for pipeline in pipelines):
        import sparkonce

        spark = sparkonce.session("verify", order.master, order.conf)
        with Path(tempfile.gettempdir(), APPLICATIONS).open("a") as applications:
            print(spark.sparkContext.applicationId, file=applications)
    first, *others = zip(pipelines, order.assignments, strict=True)
    threads = [threading.Thread(target=_run, args=pair) for pair in others]
    for thread in threads:
        thread.start()
    _run(*first)  # in the main thread: some libraries want to handle signals there
    for thread in threads:
        thread.join()
    if spark is not None:
        spark.stop()


def _run(pipeline: Pipeline, assignment: Assignment) -> None:
    Path(assignment.job.folder).mkdir(parents=True, exist_ok=True)
    try:
        assignment.own_pass(START)
        pipeline.run(assignment.job)
    except BaseException as error:  # noqa: BLE001 - told to the verifier, which judges it
        traceback.print_exc()
        assignment.own_pass.ended(f"{type(error).__name__}: {error}"[:2000])
        return
    assignment.own_pass.ended()


def _told_later(point: str) -> None:
    """Passes are not part of a job's text."""


if __name__ == "__main__":
    main()
