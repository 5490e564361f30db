"""Every error that a person or a peer may see, typed once.

Four families: ConfigError (fix a file), TransientError (repeat), ProtocolError (this run is over) and
DataError (a site's table does not fit). Each message names what is wrong, where, and what to do.
"""


class CommonscaleError(Exception):
    """Root of everything we raise on purpose."""

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(f"{message} {remedy}".strip())


class ConfigError(CommonscaleError):
    """A configuration, a pipeline file or a certificate file is not usable."""

    exit_code = 2


class GrpcLoadedBefore(ConfigError):
    """The process loaded gRPC before us, and it would speak TLS 1.2."""


class TransientError(CommonscaleError):
    """Repeating the same call may succeed."""

    exit_code = 75


class SlotEmpty(TransientError):
    """Nothing has been delivered to the slot yet."""


class Unreachable(TransientError):
    """The peer cannot be reached now."""


class StoreUnavailable(TransientError):
    """The database or its disk does not take writes now."""


class ProtocolError(CommonscaleError):
    """This run is over, or this message has no place in it."""


class Equivocation(ProtocolError):
    """One slot, two different payloads."""


class Disagreement(ProtocolError):
    """Sites were shown different joint values, or a signature over one does not hold."""


class BadMessage(ProtocolError):
    """A message that is truncated, malformed or of the wrong shape."""


class PayloadTooLarge(ProtocolError):
    """A payload over the coordinator's limit."""


class RunOver(ProtocolError):
    """The job has ended."""


class UnknownJob(ProtocolError):
    """No such job, or not one of the caller's."""


class NotAllowed(ProtocolError):
    """The caller's certificate does not allow this."""


class IncompatiblePeer(ProtocolError):
    """Two releases that cannot talk to each other."""


class TooFewSites(ProtocolError):
    """A sum over fewer than three sites would reveal them to each other."""


class DeadlineMissed(ProtocolError):
    """A site did not answer in time."""


class SiteFailed(ProtocolError):
    """A site ended its part with an error."""


class StateLost(ProtocolError):
    """A site no longer has the secrets that it began the job with."""


class Overflow(ProtocolError):
    """A column's sum does not fit the fixed-point range."""


class SiteLost(ProtocolError):
    """A site whose key share is needed is gone."""


class Unplanned(ProtocolError):
    """A step is about to open what its plan does not name."""


class WorkerFailed(ProtocolError):
    """A site's ML worker could not do what the job asks of it."""


class JobFailed(ProtocolError):
    """The job ended without a result."""


class Refused(CommonscaleError):
    """A site's policy does not allow the job."""

    exit_code = 3


class DataError(CommonscaleError):
    """A site's table does not fit the job."""

    exit_code = 4


class MissingColumn(DataError):
    """A column that the job names is not in the table."""


class WrongType(DataError):
    """A column is of another type than the job or the other sites need."""


class InfiniteValues(DataError):
    """A column holds infinities."""


class OutOfRange(DataError):
    """A column holds values beyond the bounds that the job declares."""


class TooManyCategories(DataError):
    """A column has more different values than the job's bound."""


class UnknownCategory(DataError):
    """A column holds a value that its encoder was not fitted with."""


class ModelMismatch(DataError):
    """The sites do not have the same model."""


class UnreadableData(DataError):
    """The data source cannot be read."""


class DataChanged(DataError):
    """The table changed while a job was using it."""


def leaf_errors(root: type[CommonscaleError] = CommonscaleError) -> list[type[CommonscaleError]]:
    """All error classes, most derived first."""
    found = [leaf for child in root.__subclasses__() for leaf in leaf_errors(child)]
    return [*found, root]
