"""The table: a line for each thing that was measured, printed as it comes and written as Markdown and JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks.measure import Setup


@dataclass(frozen=True)
class Line:
    """What was measured against what. `value` is the number in `reading`; None where there is none, and why.

    `stated` is what the documentation says of it, or what is asked. `details` are the numbers behind the value
    (seconds unless their name says otherwise): for the curious, since those of another machine differ.
    """

    what: str
    against: str
    value: float | None
    reading: str
    stated: str = ""
    details: Mapping[str, float] = field(default_factory=dict)


def faster(what: str, ours: float, against: str, theirs: float, stated: str = "") -> Line:
    """How many times the speed of something else."""
    ratio = theirs / ours
    return Line(what, against, ratio, f"{digits(ratio)} × as fast", stated, {"ours": ours, "theirs": theirs})


def share(what: str, value: float, against: str, stated: str = "", **details: float) -> Line:
    """How many times as large as something else; below one in percent."""
    reading = f"{100 * value:.3g} %" if value < 0.995 else f"{digits(value)} ×"
    return Line(what, against, value, reading, stated, details)


def left_out(what: str, against: str, why: str) -> Line:
    """Something that could not be measured here."""
    return Line(what, against, None, f"left out: {why}")


def digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass
class Section:
    """The lines of one section, where and in how many seconds they were measured, and how busy the machine was."""

    title: str
    machine: str
    load: float = 0.0
    seconds: float = 0.0
    lines: list[Line] = field(default_factory=list)


@dataclass
class Table:
    """Everything measured, by section."""

    sections: dict[str, Section] = field(default_factory=dict)

    @classmethod
    def continued(cls, paths: list[Path]) -> Table:
        """What an earlier run has written as JSON, of which single sections are measured anew."""
        kept = next((path for path in paths if path.suffix == ".json" and path.is_file()), None)
        if kept is None:
            return cls()
        found = json.loads(kept.read_text(encoding="utf-8"))["sections"]
        return cls(
            {
                name: Section(**{**fields, "lines": [Line(**line) for line in fields["lines"]]})
                for name, fields in found.items()
            }
        )

    def begin(self, name: str, title: str, setup: Setup) -> Section:
        """A section without lines."""
        self.sections[name] = Section(title, machine(setup), load())
        return self.sections[name]

    def to_json(self) -> str:
        """Everything, the seconds behind the ratios included."""
        return json.dumps({"schema": 1, **asdict(self)}, indent=1, ensure_ascii=False)

    def to_markdown(self) -> str:
        """A table for each section."""
        parts = ["# `python -m benchmarks`\n"]
        for name, section in self.sections.items():
            parts.append(f"## {name}: {section.title}\n")
            parts.append(f"{section.machine}; load {section.load:.1f}\n")
            parts.append("| what | against | measured | stated |\n|---|---|---|---|")
            parts.extend(f"| {line.what} | {line.against} | {line.reading} | {line.stated} |" for line in section.lines)
            parts.append("")
        return "\n".join(parts)

    def write(self, paths: list[Path]) -> None:
        """Markdown or JSON, by the name's ending."""
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.to_json() + "\n" if path.suffix == ".json" else self.to_markdown(), encoding="utf-8")


def machine(setup: Setup) -> str:
    """One line about where this is measured."""
    name = torch.cuda.get_device_name(setup.device) if setup.device.type == "cuda" else processor()
    return f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, {setup.size} sizes"


def load() -> float:
    """Processes that want to run, over the last minute: more of them than cores, and times say little."""
    return round(os.getloadavg()[0], 1)


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    told = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in told if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
