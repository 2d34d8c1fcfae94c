"""Run every experiment whose outcome is not on disk yet."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from casal_lab.experiment import Experiment, Tell
from casal_lab.report.cache import folder_of, keeps, load, save
from casal_lab.report.stopping import CTRL_C, TIME_UP, perform
from casal_lab.report.tables import duration


@dataclass
class Ran:
    """What became of each experiment: seconds of those run, reasons of those not."""

    done: dict[str, float] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)  # cut or not begun: the time limit was reached
    rows: dict[str, int] = field(default_factory=dict)  # finished ones of experiments that were cut
    known: dict[str, float] = field(default_factory=dict)  # seconds of earlier runs of those that are late
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> dict[str, str]:
        """Experiments without a whole outcome of this run, and why."""
        late = {
            name: f"{'stopped' if self.rows.get(name) else 'not run'} ({TIME_UP}); {self._needs(name)}"
            for name in self.late
        }
        return {**late, **self.failed}

    def _needs(self, name: str) -> str:
        known = self.known.get(name)
        return f"an earlier run took {duration(known)}" if known else "no earlier run says how long it takes"

    @property
    def more(self) -> str:
        """What a longer time would add; empty if nothing."""
        if not self.late:
            return ""
        told = [
            ("the rest of " if self.rows.get(name) else "")
            + name
            + (f" ({duration(self.known[name])} in an earlier run)" if name in self.known else "")
            for name in self.late
        ]
        total = sum(self.known.get(name, 0.0) for name in self.late)
        unknown = sum(name not in self.known for name in self.late)
        times = [f"{duration(total)} by earlier runs"] if total else []
        times += [f"not known for {unknown}, of which no run came to its end here"] if unknown else []
        return f"A longer time would add: {', '.join(told)}. Time: {'; '.join(times)}."


def reproduce(
    registry: Mapping[str, Experiment],
    out: Path,
    *,
    quick: bool = False,
    only: Iterable[str] = (),
    minutes: float | None = None,
    say: Tell = lambda line: None,
    tell: Tell = lambda line: None,
    ran: Ran | None = None,
) -> Ran:
    """Run what is missing, one experiment after another; each is on disk before the next begins.

    Args:
        registry: The experiments.
        out: Folder of outcomes.
        quick: Fewer chains and seeds.
        only: Names to run; none means all.
        minutes: When to stop. Of the experiment that is running then, the finished rows are kept and marked as
            partial; the next call runs it again.
        say: Told when an experiment ends.
        tell: Told each part of an experiment as it begins.
        ran: Filled as it goes, for whoever wants to know after an interruption.

    Raises:
        KeyboardInterrupt: After Ctrl-C; finished rows are on disk, as after ``minutes``.
    """
    ran = ran if ran is not None else Ran()
    end = None if minutes is None else time.monotonic() + 60 * minutes
    chosen = [registry[name] for name in only] or list(registry.values())

    for place, experiment in enumerate(chosen, start=1):
        name, head = experiment.name, f"[{place}/{len(chosen)}] {experiment.name}"
        found = load(out, name, quick, experiment)
        if found and found.current and found.whole:
            ran.kept.append(name)
            say(f"{head}: on disk, nothing to run")
            continue
        if found and found.whole:
            ran.known[name] = found.outcome.seconds

        def part(line: str, head: str = head) -> None:
            tell(f"{head}: {line}")

        try:
            outcome = perform(experiment, lambda told: experiment.run(quick, None, told), part, end)  # noqa: B023
            if outcome.partial is None:
                record = save(out, experiment, quick, outcome)
        except Exception as error:  # one broken experiment must not cost the others
            ran.failed[name] = f"failed: {type(error).__name__}: {error}"
            say(f"{head}: {ran.failed[name]}")
            continue
        if outcome.partial is None:
            ran.done[name] = record.outcome.seconds
            ran.known.pop(name, None)
            say(f"{head}: {record.outcome.seconds:.1f} s")
            continue
        if outcome.rows and keeps(folder_of(out, name, quick), experiment, outcome) is None:
            save(out, experiment, quick, outcome)
        ran.rows[name] = outcome.rows
        kept = f"{outcome.rows} finished rows are kept" if outcome.rows else "no row was finished"
        if outcome.partial.reason == CTRL_C:
            say(f"{head}: stopped during {outcome.partial.part!r}; {kept}")
            raise KeyboardInterrupt
        ran.late.append(name)
        say(f"{head}: {'stopped' if outcome.rows else 'not run'} ({TIME_UP}, {minutes:.3g} minutes); {kept}")
    ran.known = {name: seconds for name, seconds in ran.known.items() if name in ran.late}
    return ran
