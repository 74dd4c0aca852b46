"""Controls: pipelines made worse on purpose, which the verifier has to notice.

If one of them shows nothing, the faults were too weak or the checker is blind, and the run proves
nothing. The weaker guarantees are controls too; these here are what no guarantee is.
"""

from __future__ import annotations

from sparkonce.guarantees import Guarantee
from sparkonce.verify.contract import Pipeline
from sparkonce.verify.outcome import Defect
from sparkonce.verify.schedule import Broker, Kill, LoseUnreplicated, MoveLeaders
from sparkonce.verify.trial import Trial
from sparkonce.verify.workload import Workload

FAMILY = "control"
_RELAY = "sparkonce.verify.pipelines.relay"


def controls(brokers: int) -> list[Trial]:
    """Without numbers and seeds, which the campaign gives."""
    relay = Pipeline.load(_RELAY)
    found = [
        # With and without the offsets in the transaction.
        Trial(
            title="offsets outside the transaction",
            pipeline=relay,
            guarantee=Guarantee.EXACTLY_ONCE,
            family=FAMILY,
            schedule=(Kill(point="end:answered", nth=2),),
            settings={"verify.offsets": "outside"},
            must_show=(Defect.REPEATED, Defect.OFFSETS),
        ),
        # That the bit and the markers are really in the log is checked, not believed.
        Trial(
            title="transactions left out",
            pipeline=relay,
            guarantee=Guarantee.EXACTLY_ONCE,
            family=FAMILY,
            schedule=(Kill(point="produce:first", nth=2),),
            settings={"verify.transactions": "off"},
            must_show=(Defect.UNMARKED, Defect.TORN),
        ),
        Trial(
            title="uncommitted input",
            pipeline=relay,
            guarantee=Guarantee.EXACTLY_ONCE,
            family=FAMILY,
            schedule=(),
            workload=Workload(aborted=9),
            settings={"verify.isolation": "read_uncommitted"},
            must_show=(Defect.ABORTED,),
        ),
    ]
    if brokers >= 3:
        found += [
            Trial(
                title="acks=1, the leader dies",
                pipeline=relay,
                guarantee=Guarantee.AT_LEAST_ONCE,
                family=FAMILY,
                schedule=(LoseUnreplicated(point="produce:first", nth=2),),
                settings={
                    "acks": "1",
                    "enable.idempotence": "false",
                    "verify.guarantee": "unchecked",
                    "batch.size": "1024",
                },
                # Many requests after the pause: the answer to the fetch that a follower had under
                # way waits in its socket, so the first of them may be replicated after all.
                workload=Workload(records=6_000, per_batch=2_000, partitions=1),
                must_show=(Defect.LOST,),
                shares=False,
            ),
            Trial(
                title="no idempotence, five in flight",
                pipeline=relay,
                guarantee=Guarantee.AT_LEAST_ONCE,
                family=FAMILY,
                schedule=(MoveLeaders(point="produce:first", nth=1, times=8),),
                settings={
                    "enable.idempotence": "false",
                    "batch.size": "1024",
                    "max.request.size": "4096",
                },
                workload=Workload(records=60_000, per_batch=20_000),
                must_show=(Defect.REORDERED,),
                shares=False,
            ),
        ]
    return found


def bounces() -> Trial:
    """Kafka's own method: transactions of 750 while brokers are bounced, hard and clean in turn."""
    return Trial(
        title="producer, bounced brokers",
        pipeline=Pipeline.load(_RELAY),
        guarantee=Guarantee.EXACTLY_ONCE,
        family="bounces",
        schedule=tuple(
            Broker(
                point="produce:first",
                nth=nth,
                action="kill" if nth % 40 else "restart",
                role="leader",
            )
            for nth in range(20, 134, 20)
        ),
        workload=Workload(records=100_000, per_batch=750),
        shares=False,
    )
