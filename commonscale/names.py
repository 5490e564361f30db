"""What members of the federation and jobs are called, which roles members have, and how long a certificate lasts."""

import enum
import re

NAME_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
JOB_ID_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
LEAF_DAYS = 365


class Role(enum.Enum):
    """What a certificate's holder does in the federation."""

    COORDINATOR = "coordinator"
    SITE = "site"
    AGGREGATOR = "aggregator"
    ANALYST = "analyst"
    OBSERVER = "observer"
