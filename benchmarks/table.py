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
class Table:
    """Everything measured in one run, by section."""

    setup: Setup
    sections: dict[str, list[Line]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)

    @property
    def machine(self) -> dict[str, str | int | float]:
        """Where this was measured."""
        device = self.setup.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
        return {
            "device": name,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "size": self.setup.size,
            "load": round(os.getloadavg()[0], 1),
        }

    def heading(self) -> str:
        """One line about the machine."""
        told = self.machine
        return f"{told['device']}, {told['threads']} threads, torch {told['torch']}, {told['size']} sizes"

    def add(self, section: str, line: Line) -> None:
        """One more line."""
        self.sections[section].append(line)

    def to_json(self) -> str:
        """Everything, the seconds behind the ratios included."""
        sections = {
            name: {"title": self.titles[name], "seconds": self.seconds.get(name), "lines": list(map(asdict, lines))}
            for name, lines in self.sections.items()
        }
        return json.dumps({"schema": 1, "machine": self.machine, "sections": sections}, indent=1, ensure_ascii=False)

    def to_markdown(self) -> str:
        """A table for each section."""
        parts = [f"{self.heading()}: `python -m benchmarks`{' --quick' * (self.setup.size == 'quick')}\n"]
        for name, lines in self.sections.items():
            parts.append(f"## {name}: {self.titles[name]}\n")
            parts.append("| what | against | measured | stated |\n|---|---|---|---|")
            parts.extend(f"| {line.what} | {line.against} | {line.reading} | {line.stated} |" for line in lines)
            parts.append("")
        return "\n".join(parts)

    def write(self, paths: list[Path]) -> None:
        """Markdown or JSON, by the name's ending."""
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.to_json() + "\n" if path.suffix == ".json" else self.to_markdown(), encoding="utf-8")


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
