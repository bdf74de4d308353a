"""A framework's file as a job: each setting is asked for by what it means, and what nobody asked for is unknown.

What a framework calls a setting, and which of its settings change no time, is data: tables/FRAMEWORK.json.
"""

import fnmatch
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, NoReturn, Optional, Set, Tuple, overload

from .texts import Settings

_TABLES = Path(__file__).with_name("tables")
MOST_GPUS = 1 << 22
_NOTHING: Tuple[Any, ...] = (None, "", [], {})
_NO_NUMBER = ("none", "None", "null")


def refuse(name: str, expected: str, found: Any) -> NoReturn:
    """Raises the error of a wrong setting: its name, what is allowed, what was found."""
    shown = f'"{found}"' if isinstance(found, str) else "nothing" if found is None else repr(found)
    raise ValueError(f"{name}: expected {expected}, found {shown[:200]}")


def of_tables(name: str) -> Dict[str, Any]:
    return json.loads((_TABLES / f"{name}.json").read_text(encoding="utf-8"))


class Table:
    """What a framework calls its settings: `keys` by their meaning, `change_no_time` by the reason, `known_by` the settings
    by which its files are known. `sections`: the last part of a dotted name counts, as the table that it names has it.
    `with`: tables whose keys it has, too."""

    def __init__(self, name: str):
        own = of_tables(name)
        self.framework: str = own["framework"]
        self.known_by: List[List[str]] = own.get("known_by", [])
        self.defaults: Dict[str, Any] = own.get("defaults", {})
        self.sections = "sections" in own
        self.keys: Optional[Dict[str, str]] = {} if "keys" in own or self.sections else None
        names: Set[str] = set()
        for part in [own] + [of_tables(other) for other in own.get("with", []) + ([own["sections"]] if self.sections else [])]:
            if self.keys is not None:
                self.keys = {**part.get("keys", {}), **self.keys}
            names |= {one for words in part["change_no_time"].values() for one in words.split()}
        self.harmless: FrozenSet[str] = frozenset(one for one in names if "*" not in one)
        self.patterns = [one for one in names if "*" in one]

    def recognises(self, settings: Settings) -> bool:
        """Whether a file has all settings of one of the groups in `known_by`, in which * means any letters."""
        return any(all(fnmatch.filter(settings, name) for name in group) for group in self.known_by)

    def is_harmless(self, name: str) -> bool:
        if name in self.harmless or name.removeprefix("no_") in self.harmless or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns):
            return True
        return self.sections and name.rsplit(".", 1)[-1] in self.harmless

    def meaning(self, name: str) -> Optional[str]:
        """The name by which a setting of the file is read; None if it changes no time."""
        if self.keys is not None and name in self.keys:
            return self.keys[name]
        if self.is_harmless(name):
            return None
        if self.sections:
            return (self.keys or {}).get(name.rsplit(".", 1)[-1], name.rsplit(".", 1)[-1])
        return name if self.keys is None else None


@dataclass
class Options:
    """What a user adds to a file."""

    gpus: Optional[int] = None
    gpu: Optional[str] = None
    model: Optional[str] = None


@dataclass
class Imported:
    """A study made of a framework's file. `print` shows what was not understood and what was assumed."""

    framework: str
    study: Dict[str, Any]
    unknown: List[str] = field(default_factory=list)
    assumed: List[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"a job of {self.framework}: {self.study['name']}"]
        lines += [f"not understood: {name}" for name in self.unknown]
        lines += [f"assumed: {what}" for what in self.assumed]
        return "\n".join(lines)


class Job:
    """Settings of one file, each of which is read once by its meaning."""

    def __init__(self, path: str, settings: Settings, table: Table, options: Options):
        settings = dict(settings)
        self.path, self.settings, self.table, self.options = path, settings, table, options
        self.names: Dict[str, List[str]] = {}
        # A full name in the table takes precedence over one that matches only its last part.
        for name in sorted(settings, key=lambda one: table.keys is not None and one not in table.keys):
            meaning = table.meaning(name)
            if meaning is not None:
                self.names.setdefault(meaning, []).append(name)
        self.asked: Set[str] = set()
        self.forgotten: Set[str] = set()
        self.assumed: List[str] = []

    def name_of(self, meaning: str) -> str:
        """The setting's name in the file."""
        return next(iter(self.names.get(meaning, [])), meaning)

    def get(self, meaning: str, default: Any = None) -> Any:
        names = self.names.get(meaning, [])
        self.asked.update(names)
        return next((self.settings[name] for name in names if self.settings[name] not in _NOTHING), default)

    def forget(self, meaning: str) -> None:
        """Names a setting whose value was not understood."""
        self.forgotten.update(self.names.get(meaning, []))

    @overload
    def count(self, meaning: str, default: int, least: int = -1) -> int: ...

    @overload
    def count(self, meaning: str, default: None = None, least: int = -1) -> Optional[int]: ...

    def count(self, meaning: str, default: Optional[int] = None, least: int = -1) -> Optional[int]:
        value = self.get(meaning)
        value = value[0] if isinstance(value, list) and value else None if value in _NO_NUMBER else value
        if isinstance(value, str) and "$" in value:
            self.assume(f"{self.name_of(meaning)} {'as its default' if default is None else default}: the file leaves it open ({value})")
            value = None
        if value is None:
            return default
        if isinstance(value, float) and not value.is_integer() or isinstance(value, bool):
            refuse(self.name_of(meaning), "an integer", value)
        try:
            count = int(value)
        except (TypeError, ValueError, OverflowError):
            refuse(self.name_of(meaning), "an integer", value)
        if not least <= count < 1 << 31:
            refuse(self.name_of(meaning), f"an integer from {least} to 2^31 - 1", value)
        return count

    def degree(self, meaning: str, default: int = 1) -> int:
        return self.count(meaning, default, least=1)

    def needed(self, meaning: str) -> int:
        value = self.count(meaning, least=1)
        if value is None:
            raise ValueError(f"{self.name_of(meaning)}: expected an integer, found nothing")
        return value

    def is_set(self, meaning: str, default: bool = False) -> bool:
        value = self.get(meaning)
        return default if value is None else value in (True, "True", "true", "yes", "1", 1)

    def has(self, meaning: str) -> bool:
        return self.get(meaning) is not None

    def assume(self, what: str) -> None:
        self.assumed.append(what)

    def unknown(self) -> List[str]:
        def off(value: Any) -> bool:
            return value in (*_NOTHING, *_NO_NUMBER, False, "False", "false", "no", "[]", 0, "0")

        # Settings in the table count as understood, even if another setting makes them irrelevant.
        understood = (self.asked | set(self.table.keys or ())) - self.forgotten
        return sorted(name for name, value in self.settings.items()
                      if not name.startswith("_") and name not in understood and not off(value)
                      and (name in self.forgotten or not self.table.is_harmless(name)))

    def replicas(self, said: Optional[int], of_replica: int, least: int = 1, divisor_of: Optional[int] = None) -> int:
        """Data parallelism: GPUs over those of a replica, and at least `least`, which the experts need. If nobody says
        how many GPUs there are, it assumes a node of 8, or fewer if replicas could not share `divisor_of` evenly."""
        world = self.options.gpus or said
        if world is None:
            each = next((n for n in range(max(least, 8 // of_replica), least, -1)
                         if n % least == 0 and (divisor_of is None or divisor_of % n == 0)), least)
            self.assume(f"{self.of(each * of_replica, 'GPU')}, data parallelism {each}: the file does not say how many there are (--gpus)")
            return each
        if world % of_replica:
            raise ValueError(f"gpus: expected a multiple of the {of_replica} of a replica, found {world}")
        if world // of_replica < least:
            raise ValueError(f"gpus: expected at least {least * of_replica}, over which the experts are shared, found {world}")
        return world // of_replica

    @staticmethod
    def of(count: int, what: str) -> str:
        return f"{count} {what}{'' if count == 1 else 's'}"

    def _runs_as(self, parallel: Dict[str, Any]) -> None:
        """Takes the nearest value that the simulator has, and names both."""
        if parallel.get("pipeline", 1) > 1 and parallel.get("zero") == 3:
            parallel["zero"] = 2
            self.assume("parameters stay gathered (ZeRO 2): FSDP with a pipeline is not simulated")

    def finish(self, study: Dict[str, Any]) -> Imported:
        study = {key: value for key, value in study.items() if value not in (None, {})}
        profile = self.options.gpu or "h100-sxm"
        if not self.options.gpu:
            self.assume("cluster.profile h100-sxm: the file does not say on which GPU it runs (--gpu)")
        self._runs_as(study["parallel"])
        study = {"name": Path(self.path).stem, **study, "cluster": {"profile": profile}}
        return Imported(self.table.framework, study, self.unknown(), self.assumed)
