"""A job's rounds and protocols, from when its messages came."""

from commonscale.channel.slot import ALL, COORDINATOR, Slot
from commonscale.pipeline import Pipeline
from coordinator import timeline
from coordinator.jobstore import JobRecord
from coordinator.slots import Arrival

PIPELINE = Pipeline.model_validate(
    {
        "sites": ["a", "b", "c"],
        "steps": [{"transform": "zscore", "columns": ["x"]}, {"transform": "onehot", "columns": ["y"]}],
    }
)

RECORD = JobRecord("j", PIPELINE.to_bytes(), "analyst", "running", submitted_at_ms=1000, deadline_at_ms=9000)


def arrival(run: str, kind: str, sender: str, receiver: str, size: int, at_ms: int) -> Arrival:
    return Arrival(Slot(run, kind, sender, receiver), size, at_ms)


ARRIVALS = [
    arrival("j", "Signed", "a", COORDINATOR, 10, 1100),
    arrival("j", "Signed", "b", COORDINATOR, 20, 1300),
    arrival("j", "Roster", COORDINATOR, ALL, 40, 1310),
    arrival("j/0", "mean.MaskedVector", "a", COORDINATOR, 5, 1400),
    arrival("j/0", "mean.Share", "a", "b", 5, 1500),
    arrival("j/0", "mean.Share", "a", "c", 7, 1550),
    arrival("j/1", "Token", "b", COORDINATOR, 9, 2550),
    arrival("j", "Outcome", "a", COORDINATOR, 3, 2600),
]


def test_messages_of_a_kind_in_a_step_are_a_round() -> None:
    """Who sent how much, the first and the last."""
    found = timeline.rounds(ARRIVALS)
    assert [(entry["step"], entry["kind"], entry["direction"]) for entry in found] == [
        (None, "Signed", "to-coordinator"),
        (None, "Roster", "to-all"),
        (0, "mean.MaskedVector", "to-coordinator"),
        (0, "mean.Share", "between-sites"),
        (1, "Token", "to-coordinator"),
        (None, "Outcome", "to-coordinator"),
    ]
    signed, shares = found[0], found[3]
    assert (signed["first_ms"], signed["last_ms"], signed["messages"], signed["bytes"]) == (1100, 1300, 2, 30)
    assert signed["senders"] == {"a": {"at_ms": 1100, "bytes": 10}, "b": {"at_ms": 1300, "bytes": 20}}
    assert shares["senders"] == {"a": {"at_ms": 1550, "bytes": 12}}


def test_protocols_take_all_of_a_jobs_time() -> None:
    """Each from the end of the one before; together from submission to the last message."""
    found = timeline.protocols(RECORD, timeline.rounds(ARRIVALS))
    assert [(entry["step"], entry["seconds"], entry["bytes"]) for entry in found] == [
        (None, 0.31, 70),
        (0, 0.24, 17),
        (1, 1.0, 9),
        (None, 0.05, 3),
    ]
    assert [entry["protocol"] for entry in found][0::3] == ["admission", "outcome"]
    assert sum(entry["seconds"] for entry in found) == 1.6


def test_a_job_without_messages_has_no_rounds() -> None:
    """And says so, instead of failing."""
    assert timeline.rounds([]) == []
    assert timeline.protocols(RECORD, []) == []
    assert [step["number"] for step in timeline.steps(RECORD)] == [0, 1]


def session(rounds: int) -> list[Arrival]:
    """Two messages in each round of a session, and what the coordinator keeps for itself."""
    return [
        arrival("j/0", "Sizes", "a", COORDINATOR, 4, 1900),
        *(
            one
            for number in range(1, rounds + 1)
            for one in (
                arrival(f"j/0/{number}", "update", "a", COORDINATOR, 10, 2000 + 100 * number),
                arrival(f"j/0/{number}", "update", "b", COORDINATOR, 10, 2050 + 100 * number),
                arrival(f"j/0/{number}", "Checkpoint", COORDINATOR, COORDINATOR, 99, 2060 + 100 * number),
            )
        ),
    ]


def test_of_a_session_the_newest_round_is_told_by_itself() -> None:
    """The rounds before it are added up; what precedes the session stays apart."""
    before, earlier, newest = timeline.rounds(session(17))
    assert (before["kind"], before["rounds"], before["summed"]) == ("Sizes", None, False)
    assert (earlier["rounds"], earlier["summed"], earlier["messages"], earlier["bytes"]) == ([1, 16], True, 32, 320)
    assert (earlier["first_ms"], earlier["last_ms"]) == (2100, 3650)
    assert (newest["rounds"], newest["summed"], newest["messages"]) == ([17, 17], False, 2)
    assert newest["senders"]["b"] == {"at_ms": 3750, "bytes": 10}


def test_a_round_that_nobody_has_begun_puts_the_others_behind_it() -> None:
    """A round in which all sites still train is the newest."""
    _, earlier = timeline.rounds(session(3), {0: 4})
    assert (earlier["rounds"], earlier["summed"], earlier["messages"]) == ([1, 3], True, 6)
    assert timeline.round_of("j/0/17") == 17
    assert timeline.round_of("j/0") is None
