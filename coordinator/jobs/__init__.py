"""Jobs: an outer state machine around the protocols' coordinator roles.

A job's messages are its history: the roles draw no randomness and read no clock, so driving a job again over
the stored mailbox after a crash brings it to where it was. What time decides (a deadline, a cancellation) is
written to the job's row before anyone acts on it.

Of several replicas, one drives a job; the others know it from the database, serve its messages, and take it over.

`registry` is what calls come to, `board` knows who drives which job, `driver` runs one.
"""

from coordinator.jobs.driver import LiveJob
from coordinator.jobs.registry import Jobs

__all__ = ["Jobs", "LiveJob"]
