"""Mutants of the producer: waiting, numbering, answers, and the transaction's decisions."""

from __future__ import annotations

from mutants.mutant import Cell, Change, Mutant

_NETWORK = Cell("producer", "exactly_once", "network")
_BROKERS = Cell("producer", "exactly_once", "brokers")
_TIMEOUT = Cell("producer", "exactly_once", "timeout")
_COORDINATOR_AWAY = Cell("producer", "exactly_once", "coordinator")
_LATE = Cell("producer", "exactly_once", "late")
_VERSION_1 = Cell("producer, version 1, unverified", "exactly_once", "network")
_LATE_VERSION_1 = (
    Cell("producer, version 1, unverified", "exactly_once", "late"),
    Cell("joined producers, version 1, unverified", "exactly_once", "late"),
)
_LAST_EPOCHS = (
    Cell("producer, last epochs", "exactly_once", "epochs"),
    Cell("producer, version 1, last epochs", "exactly_once", "epochs"),
)
_EXPIRY = Cell("producer, ids expire", "exactly_once", "expiry")

_SENDER, _LANE = "produce/sender.py", "produce/lane.py"
_COORDINATOR, _TRANSACTIONAL = "produce/coordinator.py", "produce/transactional.py"
_OWNERSHIP = "produce/ownership.py"
_COMMIT = "self._next(self._coordinator.end(self._known(), commit=True))"
_REACTION = "react = Reaction.FIND_LEADER if code < 0 else reaction(code)"

PRODUCING = (
    # -- waiting ----------------------------------------------------------------------------------
    Mutant(
        name="commit without acknowledgements",
        sabotages="The commit waits until records are sent, not until they are acknowledged",
        cells=(_NETWORK,),
        changes=(
            Change(_SENDER, "awaited.isdisjoint(self._open),", "not self._inbox,"),
            Change(_SENDER, "return not self._open\n", "return not self._inbox\n"),
        ),
    ),
    # -- answers ----------------------------------------------------------------------------------
    Mutant(
        name="no answer is an acknowledgement",
        sabotages="A Produce whose connection broke is taken for acknowledged",
        cells=(_NETWORK,),
        changes=(Change(_SENDER, _REACTION, _REACTION.replace("FIND_LEADER", "NONE")),),
    ),
    Mutant(
        name="not the leader is an acknowledgement",
        sabotages="A Produce that a broker refuses since it does not lead, or lacks replicas, is "
        "taken for acknowledged",
        cells=(_BROKERS,),
        changes=(
            Change(
                _SENDER,
                _REACTION,
                "react = Reaction.NONE if code in (3, 6, 7, 19, 20) else Reaction.FIND_LEADER if "
                "code < 0 else reaction(code)",
            ),
        ),
    ),
    Mutant(
        name="out of order is an acknowledgement",
        sabotages="A batch refused for its sequence is taken for a repeat of one that was written",
        cells=(_NETWORK,),
        changes=(
            Change("errors.py", "Reaction.OUT_OF_ORDER: (45, 59)", "Reaction.OUT_OF_ORDER: (59,)"),
            Change("errors.py", "Reaction.NONE: (0, 46)", "Reaction.NONE: (0, 45, 46)"),
        ),
    ),
    Mutant(
        name="failed records are forgotten",
        sabotages="Records that were not delivered in time do not fail their transaction",
        cells=(_LATE,),
        changes=(
            Change(
                _SENDER,
                "            return self._end(batch, DeliveryFailed(why, code), _NO_OFFSET)\n",
                "            return self._end(batch, DeliveryFailed(why, code), _NO_OFFSET)\n"
                "        if lane.transactional:\n"
                "            return self._end(batch, None, _NO_OFFSET)\n",
            ),
        ),
    ),
    Mutant(
        name="an outcome before its failure",
        sabotages="Whoever waits for records is told of their outcome before the failure that "
        "follows from it is set: the commit may look in between, here for as long as a busy "
        "machine may take",
        cells=(_LATE,),
        changes=(
            Change(
                _SENDER,
                """        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()
        self._end(batch, failure, _NO_OFFSET)
        self._drop_all(failure)
""",
                """        self._end(batch, failure, _NO_OFFSET)
        self._drop_all(failure)
        time.sleep(0.05)
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()
""",
            ),
        ),
    ),
    Mutant(
        name="acks=1 in transactions",
        sabotages="Records of a transaction are acknowledged by the leader alone",
        cells=(_BROKERS,),
        changes=(Change(_SENDER, "acks=self._options.acks,", "acks=1,"),),
    ),
    # -- numbering --------------------------------------------------------------------------------
    Mutant(
        name="resends are numbered anew",
        sabotages="A batch that is sent again has the next sequence, not its own",
        cells=(_NETWORK,),
        changes=(
            Change(
                _LANE,
                "        batch.not_before_s = not_before_s\n",
                "        batch.not_before_s = not_before_s\n        self._number(batch)\n",
            ),
        ),
    ),
    # -- the decision -----------------------------------------------------------------------------
    Mutant(
        name="unknown is committed",
        sabotages="A commit that had no answer within max.block.ms is taken for done",
        cells=(_COORDINATOR_AWAY,),
        changes=(
            Change(
                _COORDINATOR,
                '            raise OutcomeUnknown(\n                f"the {verb} of {who} was sent',
                "            if commit:\n                return who\n"
                '            raise OutcomeUnknown(\n                f"the {verb} of {who} was sent',
            ),
        ),
    ),
    Mutant(
        name="unknown is aborted",
        sabotages="A commit that had no answer within max.block.ms is taken for not done: the "
        "batch is written again under a new epoch",
        cells=(_COORDINATOR_AWAY,),
        changes=(
            Change(
                _TRANSACTIONAL,
                f"                {_COMMIT}\n",
                "                try:\n"
                f"                    {_COMMIT}\n"
                "                except OutcomeUnknown as unknown:\n"
                "                    self._identity = self._coordinator.init()\n"
                "                    self._sent = self._is_known_open = self._shared = False\n"
                "                    raise TransactionTimedOut(str(unknown)) from unknown\n",
            ),
        ),
    ),
    Mutant(
        name="the answer to EndTxn is not read",
        sabotages="A coordinator that has moved, or is busy, and refuses the commit, is not asked "
        "again",
        cells=(_BROKERS,),
        changes=(
            Change(
                _COORDINATOR,
                'self._ask_transaction("EndTxn", request, _error_code)',
                'self._ask_transaction("EndTxn", request, lambda answer: 0)',
            ),
        ),
    ),
    Mutant(
        name="the answer to TxnOffsetCommit is not read",
        sabotages="A group coordinator that refuses the offsets is not asked again",
        cells=(_BROKERS,),
        changes=(
            Change(
                _COORDINATOR,
                "return [part.error_code for topic in answer.topics for part in topic.partitions]",
                "return []",
            ),
        ),
    ),
    Mutant(
        name="a refused commit is done",
        sabotages="A commit refused for its epoch, since the coordinator timed the transaction "
        "out, is taken for done",
        cells=(_TIMEOUT,),
        changes=(
            Change(
                _TRANSACTIONAL,
                f"                {_COMMIT}\n",
                "                try:\n"
                f"                    {_COMMIT}\n"
                "                except EpochRefused:\n"
                "                    self._identity = self._coordinator.init()\n",
            ),
        ),
    ),
    # -- fencing ----------------------------------------------------------------------------------
    Mutant(
        name="the fenced one takes over again",
        sabotages="Every refused epoch is taken for a time-out of one's own, so a zombie takes the "
        "next epoch and writes its batch again",
        cells=(Cell("stateless", "exactly_once", "zombie"),),
        changes=(
            Change(
                _OWNERSHIP,
                "    if told.state not in _ABORTED:\n        return Standing.SUCCEEDED\n",
                "    if told.state not in _ABORTED:\n        return Standing.ABORTED\n",
            ),
            Change(
                _OWNERSHIP,
                "(KAFKA-19367)\n    return Standing.SUCCEEDED\n",
                "(KAFKA-19367)\n    return Standing.ABORTED\n",
            ),
        ),
    ),
    Mutant(
        name="an abort is left out",
        sabotages="An attempt that is given up is not aborted: what the next one commits has its "
        "records in it",
        cells=(Cell("stateful", "exactly_once", "worker"),),
        changes=(
            Change(
                _TRANSACTIONAL,
                "            if self._sent or self._shared:\n                self._next(",
                "            if False:\n                self._next(",
            ),
        ),
    ),
    Mutant(
        name="an abort leaves the epoch",
        sabotages="Under transaction version 1 an attempt is aborted by EndTxn alone, and its "
        "markers have its own epoch: what arrives late of it is in the next transaction",
        cells=_LATE_VERSION_1,
        changes=(
            Change(
                _OWNERSHIP,
                "        if self._coordinator.transaction_version >= 2:\n",
                "        if True:\n",
            ),
        ),
    ),
    Mutant(
        name="a forgotten id is one's own",
        sabotages="A producer whose transactional id the cluster has forgotten takes it again, and "
        "goes on where it was, whoever has had it meanwhile",
        cells=(_EXPIRY,),
        changes=(
            Change(
                _OWNERSHIP,
                "        if found in (Standing.OPEN, Standing.CURRENT):\n",
                "        if found in (Standing.OPEN, Standing.CURRENT, Standing.EXPIRED):\n",
            ),
            Change(
                _OWNERSHIP,
                "        if found in (Standing.CURRENT, Standing.OPEN) and not is_refused:\n",
                "        is_ours = found in (Standing.CURRENT, Standing.OPEN) and not is_refused\n"
                "        if is_ours or found is Standing.EXPIRED:\n",
            ),
            Change(
                _OWNERSHIP,
                "if raised.producer_id != former.producer_id and former.epoch < EPOCH_MAX:",
                "if False:",
            ),
            Change(
                _OWNERSHIP,
                "            return _expired(who, code, commit_maybe_taken)\n",
                "            return TransactionTimedOut(str(who), code)\n",
            ),
        ),
    ),
    Mutant(
        name="another producer id for anybody",
        sabotages="A producer whose epochs are used up asks for another producer id as anybody "
        "may, and not as the one it was, and so takes over from its successor",
        cells=_LAST_EPOCHS,
        changes=(
            Change(
                _TRANSACTIONAL,
                "        if looks_first and not self._needs_epoch:\n",
                "        is_last = self._known().epoch >= EPOCH_MAX - 1\n"
                "        if looks_first and not self._needs_epoch and not is_last:\n",
            ),
            Change(
                _TRANSACTIONAL,
                "            self._identity = ownership.raise_epoch(who, Begun.NO, "
                "looks_first=looks_first)\n",
                "            raise_epoch = ownership.raise_epoch\n"
                "            self._identity = self._coordinator.init() if is_last else raise_epoch("
                "who, Begun.NO, looks_first=looks_first)\n",
            ),
            Change(
                _TRANSACTIONAL,
                "            self._identity = ownership.raise_epoch(self._known(), Begun.NO)\n",
                "            self._identity = self._coordinator.init()\n",
            ),
        ),
    ),
    Mutant(
        name="one epoch for all transactions",
        sabotages="Under transaction version 1 the epoch is not raised behind a commit",
        cells=(_VERSION_1,),
        changes=(
            Change(
                _TRANSACTIONAL,
                _COMMIT,
                _COMMIT.replace("self._next(", "self._identity = ("),
            ),
        ),
    ),
    Mutant(
        name="the epoch is raised by anybody",
        sabotages="Under transaction version 1 a producer that raises its epoch does not say which "
        "one it had, and so takes over from its successor",
        cells=(_VERSION_1,),
        changes=(
            Change(_COORDINATOR, "self._init_request(former)", "self._init_request(None)"),
            Change(_OWNERSHIP, "            if looks:\n", "            if False:\n"),
        ),
    ),
    Mutant(
        name="the group is not in the transaction",
        sabotages="Under transaction version 1 offsets are sent without AddOffsetsToTxn, so the "
        "decision never reaches them",
        cells=(_VERSION_1,),
        changes=(Change(_COORDINATOR, "        if not implicit:\n", "        if False:\n"),),
    ),
)
