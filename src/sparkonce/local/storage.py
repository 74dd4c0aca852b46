"""A cluster's folder: formatted once, recognised when it is used again.

`cluster.json` beside the brokers' folders says what the folder was made for. KRaft needs each
node's folder formatted under one cluster id before its first start, and never again.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from sparkonce.errors import LocalError
from sparkonce.local.broker import Broker, explain_death
from sparkonce.local.cache import put

_FORMAT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What can't change between two starts on the same folder."""

    cluster_id: str
    brokers: int
    transaction_version: int


def prepare(
    folder: Path, brokers: Sequence[Broker], jar_folder: Path, transaction_version: int
) -> None:
    """Write the settings of this start, and format the brokers' folders if they are new."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        identity = _recognise(folder, len(brokers), transaction_version)
        for broker in brokers:
            broker.write_settings()
        # Asked of each: an earlier first start may have been cut short between two of them.
        _format([each for each in brokers if not each.is_formatted()], jar_folder, identity)
    except OSError as error:
        raise LocalError(
            f"The folder {folder} can't be prepared for Kafka: {error}. "
            "Pass a data_dir on a disk with free space that you may write to."
        ) from error


def _recognise(folder: Path, brokers: int, transaction_version: int) -> Identity:
    """The identity that the folder has, or gets now if it is empty."""
    identity_file = folder / "cluster.json"
    if not identity_file.exists():
        foreign = sorted(entry.name for entry in folder.iterdir())
        if foreign:
            raise LocalError(
                f"The folder {folder} isn't empty and holds no cluster of ours (it has "
                f"'{foreign[0]}'). Pass an empty or a new folder as data_dir."
            )
        identity = Identity(_new_id(), brokers, transaction_version)
        identity_file.write_text(json.dumps(asdict(identity)))
        return identity
    identity = Identity(**json.loads(identity_file.read_text()))
    wanted = {"brokers": brokers, "transaction_version": transaction_version}
    for what, value in wanted.items():
        made_for = getattr(identity, what)
        if made_for != value:
            raise LocalError(
                f"The folder {folder} was made for a cluster with {what}={made_for}, and now "
                f"{what}={value} is asked for. Ask for {made_for}, or pass another data_dir."
            )
    return identity


def _new_id() -> str:
    encoded = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # Never a leading dash: Kafka's tool would take it for an option.
    return "k" + encoded[1:]


def _format(brokers: Sequence[Broker], jar_folder: Path, identity: Identity) -> None:
    """By Kafka's tool, a JVM of half a second, where it hasn't been run yet; else by its example.

    What the tool writes, ids apart, depends on nothing but Kafka's and the transactions' version.
    """
    example = jar_folder / f"features-{identity.transaction_version}.checkpoint"
    is_usual = all(broker.has_usual_folders for broker in brokers)
    if is_usual and example.exists():
        features = example.read_bytes()
        for broker in brokers:
            broker.format_like(features, identity.cluster_id, _new_id())
        return
    _run_tool(brokers, identity)
    if is_usual and brokers:
        with suppress(OSError):  # jars where one can't write: the tool is run each time
            put(example, brokers[0].features_file.read_bytes())


def _run_tool(brokers: Sequence[Broker], identity: Identity) -> None:
    # All at once.
    tools = [
        broker.begin_format(identity.cluster_id, identity.transaction_version) for broker in brokers
    ]
    said = [tool.communicate(timeout=_FORMAT_TIMEOUT_S)[0] for tool in tools]
    for broker, tool, output in zip(brokers, tools, said, strict=True):
        if tool.returncode != 0:
            raise LocalError(explain_death(broker.node, output, broker.log_file))
