"""What a site has beside its rows: what earlier jobs left there, and model files."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonscale.categories import Dictionary, TextRules
from commonscale.errors import ConfigError, StateLost, UnreadableData
from commonscale.estimators import fasttext
from commonscale.statistics.layout import Remembered
from commonscale.statistics.texts import ModelFile

# In a job's results, for the site's own eyes: its values and their identifiers.
MEMORY_FILE = "identifiers.json"


@dataclass(frozen=True)
class SiteKeepsakes:
    """Results of earlier jobs, and models."""

    site: str
    dataset: str
    results: Path
    models: Mapping[str, Path]
    # Whether this site has ended a job well.
    was_in: Callable[[str], bool]

    def remembered(self, job_id: str, columns: Sequence[str], rules: TextRules) -> Remembered | None:
        """This site's identifiers of these columns in an earlier job; None if it was not in it."""
        path = self.results / job_id / MEMORY_FILE
        if not path.exists() and not self.was_in(job_id):
            return None
        try:
            memories = json.loads(path.read_bytes())
        except (OSError, ValueError):
            raise StateLost(
                f"{self.site} was in job {job_id} and cannot read what it kept of it.",
                "Restore its results, or submit the job without `extends`.",
            ) from None
        for memory in memories:
            if memory["columns"] == list(columns):
                dictionaries = tuple(
                    Dictionary(tuple(d["values"]), tuple(d["identifiers"]), d["size"], tuple(d["infrequent"]))
                    for d in memory["dictionaries"]
                )
                self._check_extendable(job_id, memory, rules)
                return Remembered(dictionaries, bytes.fromhex(memory["layout"]))
        raise StateLost(
            f"Job {job_id} had no step with exactly these columns at {self.site}.",
            "Name the same columns in the same order.",
        )

    def _check_extendable(self, job_id: str, memory: Any, rules: TextRules) -> None:
        """Raise unless one value had one identifier then, and texts are compared now as they were."""
        why = ""
        if memory["dataset"] != self.dataset:
            why = f"it was of data set {memory['dataset']!r}"
        elif any(dictionary["infrequent"] for dictionary in memory["dictionaries"]):
            why = "it grouped rare values"
        elif not memory["merges_all"]:
            why = "it left the same value with several identifiers (a ring, or a threshold above 2)"
        elif memory["rules"] != {"strip": rules.strip, "casefold": rules.casefold}:
            why = "it compared texts by other rules (strip, casefold)"
        if why:
            raise ConfigError(f"Job {job_id} cannot be extended: {why}.", "Submit the job without `extends`.")

    def model(self, name: str) -> ModelFile:
        """A fastText model of this site."""
        path = self.models.get(name)
        if path is None:
            raise UnreadableData(
                f"{self.site} has no model {name!r}.", "Name its file under [models] in its configuration."
            )
        try:
            found = fasttext.Model(path)
            return ModelFile(fasttext.sha256_of(path), path.absolute(), found.dimension)
        except OSError as error:
            raise UnreadableData(f"{self.site}: model {name!r} cannot be read: {error.strerror}.") from None
        except ValueError as error:
            raise UnreadableData(f"{self.site}: model {name!r} cannot be used: {error}") from None
