"""What was tried and what failed, counted and grouped."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field


@dataclass
class Failure:
    """One finding: the check, what it was found on, what happened, and lines that show it again."""

    check: str
    where: str
    message: str
    line: str
    command: str


@dataclass
class Report:
    """Counts by heading ("set", "dtype", "unit", "operation") and the failures, of one trial or of many."""

    tried: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    failures: list[Failure] = field(default_factory=list)

    def count(self, heading: str, *names: str) -> None:
        self.tried[heading].update(names)

    def add(self, other: Report) -> None:
        for heading, names in other.tried.items():
            self.tried[heading].update(names)
        self.failures += other.failures

    def text(self) -> str:
        """Tables of counts, then each kind of failure with its shortest example."""
        lines = []
        for heading, names in self.tried.items():
            counts = ", ".join(f"{name} {count}" for name, count in sorted(names.items(), key=lambda item: -item[1]))
            lines.append(f"{heading}: {counts}")
        groups: dict[tuple[str, str], list[Failure]] = defaultdict(list)
        for failure in self.failures:
            groups[failure.check, failure.where].append(failure)
        lines.append(f"failures: {len(self.failures)} of {len(groups)} kinds")
        for (check, where), found in sorted(groups.items(), key=lambda item: -len(item[1])):
            example = min(found, key=lambda failure: len(failure.line))
            lines += ["", f"{len(found)} x {check}, {where}"]
            lines += [f"  {line}" for line in (example.message, example.line, example.command) if line]
        return "\n".join(lines)
