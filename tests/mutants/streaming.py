"""Mutants of the pipeline: a batch's steps, who may write, the ledger, recovery, and state."""

from __future__ import annotations

from mutants.mutant import Cell, Change, Mutant

_CRASH = Cell("stateless", "exactly_once", "crash")
_NETWORK = Cell("stateless", "exactly_once", "network")
_WORKER = Cell("stateless", "exactly_once", "worker")
_PARTITIONS = Cell("stateless", "exactly_once", "partitions")
_REFUSAL = Cell("stateless", "exactly_once", "refusal")
_EXPIRY = Cell("stateless, ids expire", "exactly_once", "expiry")
_STATE = Cell("stateful", "exactly_once", "state")
_STATE_CRASH = Cell("stateful", "exactly_once", "crash")
_STATE_TIMEOUT = Cell("stateful", "exactly_once", "timeout")
_STATE_REFUSAL = Cell("stateful", "exactly_once", "refusal")
_STATE_ZOMBIE = Cell("stateful", "exactly_once", "zombie")

_EXECUTOR = Cell("shuffled", "exactly_once", "executor")

_RUNS = "stream/runs.py"
_KAFKA, _TASK = "stream/kafka.py", "stream/task.py"
_OWNER = "stream/kafka_owner.py"
_DESK, _TURNS = "stream/desk.py", "stream/turns.py"
_PIPELINE, _RECOVERY, _TAKE_OVER = "stream/pipeline.py", "stream/recovery.py", "stream/takeover.py"
_BY_ID, _STEPS = "stream/state_by_id.py", "stream/steps.py"

_ALREADY = "self._last.query == entry.query and self._last.batch >= batch:"
_GO_ON = (
    "        return _no_ledger(\n"
    "            checkpoint, checkpoint.planned, pipeline, location, lost, "
    "keeps_state=keeps_state\n"
    "        )\n"
)

STREAMING = (
    # -- the write --------------------------------------------------------------------------------
    Mutant(
        name="tasks do not wait",
        sabotages="A task that has its partitions to itself ends before its records are "
        "acknowledged",
        cells=(Cell("stateless", "at_least_once", "network"),),
        changes=(
            Change(
                _TASK,
                "    return producer.produce_encoded, producer.flush\n",
                "    return producer.produce_encoded, lambda: None\n",
            ),
        ),
    ),
    Mutant(
        name="tasks in turns do not wait",
        sabotages="A task gives its turn back, and ends, when all is sent, not when it is "
        "acknowledged",
        cells=(_NETWORK,),
        changes=(
            Change(
                _TURNS,
                "        self._producer.produce_turn(batches, sequence, outcome)\n",
                "        self._producer.produce_turn(batches, sequence, lambda *_: None)\n"
                "        self._give_back(partition, following)\n"
                "        with self._changed:\n"
                "            self._held_bytes -= sum(batch.size_bytes for batch in batches)\n"
                "            self._changed.notify_all()\n",
            ),
            Change(
                _TASK,
                "            self._turns.finish()\n        self._producer.flush()\n",
                "            self._turns.finish()\n"
                "        else:\n            self._producer.flush()\n",
            ),
        ),
    ),
    Mutant(
        name="each turn begins at 0",
        sabotages="A task is not told where the one before it in a partition has ended",
        cells=(_NETWORK,),
        changes=(
            Change(
                _TURNS,
                "queue.sequence, queue.holder = sequence, None",
                "queue.sequence, queue.holder = 0, None",
            ),
        ),
    ),
    Mutant(
        name="a second attempt of a task may write",
        sabotages="A task that Spark runs again writes into the same transaction",
        cells=(_WORKER,),
        changes=(
            Change(_DESK, "        if task in self._taken:\n", "        if False:\n"),
            Change(_DESK, "            claim.queues.doom(trouble)\n", "            pass\n"),
        ),
    ),
    Mutant(
        name="a task that failed is passed over",
        sabotages="A batch is decided although a task of it failed",
        cells=(_WORKER,),
        changes=(
            Change(
                _KAFKA,
                "            self._refute(layout, error)\n            raise\n",
                "            rows = []\n",
            ),
        ),
    ),
    Mutant(
        name="each task counts partitions for itself",
        sabotages="Tasks go by the partitions that their own producers know, not by those that the "
        "driver tells all of them",
        cells=(_PARTITIONS,),
        changes=(
            Change(
                _TASK,
                "producer.encode_arrow(order.topic, table, agreed):",
                "producer.encode_arrow(order.topic, table):",
            ),
        ),
    ),
    Mutant(
        name="a second topic outside the transaction",
        sabotages="What goes to the second of two topics is written outside the transaction",
        cells=(Cell("topics", "exactly_once", "crash"),),
        changes=(
            Change(
                _TASK,
                "            send(encoded)\n",
                "            send([each for each in encoded if each.topic[-2:] != '-1'])\n"
                "            with Producer(order.settings) as outside:\n"
                "                outside.produce_encoded(\n"
                "                    [each for each in encoded if each.topic[-2:] == '-1']\n"
                "                )\n",
            ),
        ),
    ),
    Mutant(
        name="dead letters are dropped",
        sabotages="Rows that can't be written go nowhere",
        cells=(Cell("dead letters", "exactly_once", "crash"),),
        changes=(
            Change(
                "produce/producer.py",
                "            if rejected:\n                yield from",
                "            if False:\n                yield from",
            ),
        ),
    ),
    Mutant(
        name="dead letters at once",
        sabotages="Tasks with partitions of their own do not take turns at the dead letters', and "
        "nobody looks whether they met there: brokers take the second one's for a batch sent again",
        cells=(Cell("dead letters", "exactly_once", "coordinator"),),
        changes=(
            Change(
                _TASK,
                "        return self.in_turns or topic == self.dead_letter_topic\n",
                "        return self.in_turns\n",
            ),
            Change(
                _KAFKA,
                "            if isinstance(layout, Apart) and self._in_transaction:\n",
                "            if False:\n",
            ),
        ),
    ),
    Mutant(
        name="what was aborted is read",
        sabotages="The source reads records of transactions that were aborted",
        cells=(_NETWORK,),
        changes=(
            Change(
                "stream/frames.py",
                '{"kafka.isolation.level": "read_committed"}',
                '{"kafka.isolation.level": "read_uncommitted"}',
            ),
        ),
    ),
    # -- the ledger -------------------------------------------------------------------------------
    Mutant(
        name="offsets in a transaction of their own",
        sabotages="Source offsets and batch are committed behind the records, not with them",
        cells=(_CRASH,),
        changes=(
            Change(
                _KAFKA,
                "            for group, offsets in groups.items():\n"
                "                self._producer.send_offsets_to_transaction(offsets, group)\n"
                "        except OwnershipUncertain",
                "            self._for_later = groups\n        except OwnershipUncertain",
            ),
            Change(
                _KAFKA,
                '        self._tell("end:answered")\n',
                '        self._tell("end:answered")\n'
                "        with self._producer.transaction():\n"
                "            for group, offsets in self._for_later.items():\n"
                "                self._producer.send_offsets_to_transaction(offsets, group)\n",
            ),
        ),
    ),
    Mutant(
        name="the ledger is not read",
        sabotages="A start believes Spark's checkpoint alone: a batch that Spark has not finished "
        "is run again, decided or not",
        cells=(_CRASH,),
        changes=(
            Change(
                _KAFKA,
                "        return entry or self._former_entry()\n",
                "        return None\n",
            ),
            Change(_RECOVERY, _GO_ON, "        return GoOn()\n"),
        ),
    ),
    Mutant(
        name="a run id is not looked up",
        sabotages="A batch job that was committed under its run id is run again",
        cells=(Cell("batch", "exactly_once", "crash"),),
        changes=(
            Change(
                "stream/batch.py",
                "if (before := sink.take_over()) is not None:",
                "if (before := sink.take_over()) is not None and False:",
            ),
        ),
    ),
    Mutant(
        name="a rested driver does not ask the ledger",
        sabotages="A driver whose transactional id was forgotten while it rested goes on under a "
        "new one, and does not ask the ledger whether another driver has taken over",
        cells=(_EXPIRY,),
        changes=(
            Change(
                _OWNER, "        if _signature(found) != _signature(own):\n", "        if False:\n"
            ),
        ),
    ),
    # -- recovery ---------------------------------------------------------------------------------
    Mutant(
        name="Spark's commit is not finished",
        sabotages="A batch that was decided, and that Spark did not come to note, is run again",
        cells=(_CRASH,),
        changes=(
            Change(
                _RECOVERY, "        return FinishCommit(entry.batch)\n", "        return GoOn()\n"
            ),
            Change(_PIPELINE, _ALREADY, f"{_ALREADY[:-1]} and False:"),
        ),
    ),
    Mutant(
        name="an undecided batch is finished",
        sabotages="A batch that Spark has planned and nobody has decided is taken for decided",
        cells=(_CRASH,),
        changes=(
            Change(
                _RECOVERY,
                "if committed < entry.batch and not entry.came_first:\n"
                "        return FinishCommit(entry.batch)",
                "if committed < checkpoint.planned and not entry.came_first:\n"
                "        return FinishCommit(checkpoint.planned)",
            ),
        ),
    ),
    Mutant(
        name="a lost checkpoint starts over",
        sabotages="A pipeline with a new checkpoint begins at startingOffsets, not at its ledger",
        cells=(Cell("stateless", "exactly_once", "checkpoint"),),
        changes=(Change(_RECOVERY, "    return StartFromLedger()\n", "    return GoOn()\n"),),
    ),
    Mutant(
        name="lost state is taken for empty",
        sabotages="A query with state and a new checkpoint goes on from its ledger, though nobody "
        "has said that its state may be lost",
        cells=(_STATE_REFUSAL,),
        changes=(
            Change(_TAKE_OVER, '(settings.lost_state != "empty" or not only_kafka)', "False"),
        ),
    ),
    Mutant(
        name="a lost ledger is taken for a new one",
        sabotages="A batch that Spark has not finished is run again where the ledger is gone",
        cells=(_REFUSAL,),
        changes=(
            Change(
                _RECOVERY,
                'if checkpoint.committed == planned or ledger_lost == "replay":',
                'if checkpoint.committed == planned or ledger_lost != "skip":',
            ),
        ),
    ),
    Mutant(
        name="the first batch is presumed new",
        sabotages="The first batch is run again where it was planned and the ledger is gone",
        cells=(_REFUSAL,),
        changes=(
            Change(
                _RECOVERY,
                'if checkpoint.committed == planned or ledger_lost == "replay":',
                'if checkpoint.committed == planned or planned == 0 or ledger_lost == "replay":',
            ),
        ),
    ),
    Mutant(
        name="an older copy of the checkpoint goes on",
        sabotages="A checkpoint that is older than the ledger runs again what was written since",
        cells=(_REFUSAL,),
        changes=(
            Change(
                _RECOVERY,
                "    if entry.batch > checkpoint.planned:\n",
                "    if entry.batch > checkpoint.planned:\n        return GoOn()\n"
                "    if entry.batch > checkpoint.planned:\n",
            ),
            Change(_PIPELINE, _ALREADY, f"{_ALREADY[:-1]} and False:"),
        ),
    ),
    Mutant(
        name="another query's entry is gone on from",
        sabotages="A checkpoint goes on although another one has written under the same name since",
        cells=(_REFUSAL,),
        changes=(
            Change(
                _RECOVERY,
                "    if entry.query != checkpoint.query:\n",
                "    if entry.query != checkpoint.query and entry.batch < 0:\n",
            ),
        ),
    ),
    # -- what Spark computes again ----------------------------------------------------------------
    Mutant(
        name="what was computed again is decided",
        sabotages="Nobody asks before the decision whether Spark has computed a part of the batch "
        "again while the rest of it was there",
        cells=(_EXECUTOR,),
        changes=(Change(_PIPELINE, "        self._run.check()\n", "        pass\n"),),
    ),
    # Without all of `settle` the check before the decision looks at the jobs of both attempts, and
    # finds what was lost with the executor among those of the first. So this leaves the rest of it.
    Mutant(
        name="what an aborted attempt shuffled is read",
        sabotages="A batch is run again on what is left of shuffles that were computed twice in "
        "the attempt before",
        cells=(_EXECUTOR,),
        changes=(
            Change(
                _RUNS,
                "        if _is_shuffled_twice(jobs) and self._ran_again_or_spend(jobs):\n",
                "        if False:\n",
            ),
        ),
    ),
    # -- state ------------------------------------------------------------------------------------
    Mutant(
        name="Spark's commit names the former state",
        sabotages="A commit that is finished for Spark names the state of the batch before",
        cells=(_STATE_CRASH,),
        changes=(
            Change(
                _TAKE_OVER,
                "folder.finish(step.batch, notes.ids(entry))",
                "folder.finish(step.batch)",
            ),
            Change(
                "stream/checkpoint.py",
                '        elif fields.get("stateUniqueIds"):\n',
                "        elif False:\n",
            ),
        ),
    ),
    Mutant(
        name="the first attempt's state is noted",
        sabotages="Where a task ran twice, the ledger names the state of the first run, whose rows "
        "were given up",
        cells=(_STATE_TIMEOUT,),
        changes=(
            Change(
                _BY_ID,
                "for index, run in enumerate(runs)}",
                "for index, run in reversed([*enumerate(runs)])}",
            ),
        ),
    ),
    Mutant(
        name="the first attempt's state is left to Spark",
        sabotages="Spark is left the ids of all attempts at a batch, and takes the first one's",
        cells=(_STATE_TIMEOUT,),
        changes=(
            Change(_BY_ID, "        if len(runs) > len(last):\n", "        if False:\n"),
            Change(
                _BY_ID,
                "        if former is not None and begun_from",
                "        if False and begun_from",
            ),
        ),
    ),
    Mutant(
        name="state by version, unguarded",
        sabotages="State is named by its version alone, and nobody looks whose it is",
        cells=(_STATE, _STATE_ZOMBIE),
        changes=(
            Change(
                "stream/state_format.py",
                "    return 2 if _provider(spark, folder).endswith(_ROCKSDB) else 1\n",
                "    return 1\n",
            ),
            Change(
                "stream/writer.py",
                "if must_agree or format_version >= 2:",
                "if format_version >= 2:",
            ),
        ),
    ),
    Mutant(
        name="versions in doubt are forgotten",
        sabotages="With state by version, a start does not know which versions were computed "
        "twice, and reads a fenced driver's snapshot of one",
        cells=(_STATE,),
        changes=(
            Change(
                "stream/state_by_version.py",
                "        self._given_up |= set(self._notes.read(entry.state).get(_GIVEN_UP, ()))\n",
                "",
            ),
        ),
    ),
    # -- the weaker guarantees --------------------------------------------------------------------
    Mutant(
        name="at least once, progress first",
        sabotages="at_least_once notes progress before it writes",
        cells=(Cell("stateless", "at_least_once", "crash"),),
        changes=(
            Change(
                _STEPS,
                "Guarantee.AT_LEAST_ONCE: (Step.WRITE, Step.FENCE, Step.RECORD, Step.DECIDE)",
                "Guarantee.AT_LEAST_ONCE: (Step.FENCE, Step.RECORD, Step.DECIDE, Step.WRITE)",
            ),
        ),
    ),
    Mutant(
        name="at most once, data first",
        sabotages="at_most_once writes before it notes progress",
        cells=(Cell("stateless", "at_most_once", "crash"),),
        changes=(
            Change(
                _STEPS,
                "Guarantee.AT_MOST_ONCE: (Step.FENCE, Step.RECORD, Step.DECIDE, Step.WRITE)",
                "Guarantee.AT_MOST_ONCE: (Step.WRITE, Step.FENCE, Step.RECORD, Step.DECIDE)",
            ),
        ),
    ),
    Mutant(
        name="at most once, again after a crash",
        sabotages="at_most_once writes a batch again whose progress was noted before a crash",
        cells=(Cell("stateless", "at_most_once", "crash"),),
        changes=(Change(_PIPELINE, _ALREADY, f"{_ALREADY[:-1]} and False:"),),
    ),
    Mutant(
        name="at most once, sent again",
        sabotages="at_most_once sends again what had no answer",
        cells=(Cell("producer", "at_most_once", "network"),),
        changes=(
            Change(
                "guarantees.py",
                '{"enable.idempotence": "false", "retries": "0"}',
                '{"enable.idempotence": "false"}',
            ),
        ),
    ),
)
