"""Makes the tables of a paper from its data file (wlb_llm.toml and the like), by one draw of lengths.

A file has the paper's name, how many `draws` of lengths its figures are medians of, its `hypothesis`, why some figures cannot be had (`cannot`), what is not compared and why (`not_here`),
policies, settings and lists of settings that several tables use, and the tables.

The *hypothesis* is one setting for all figures of the paper: for each thing that it leaves open `what` it is, the `text` that
supports the choice, what is taken where nothing is chosen (`unchosen`), what was `chosen`, and `by` which figure. Its `set` gives keys
and, for each, both values. Every figure is made with both.

A *setting* is a study, its rows (`policies`, the shipped ones by default), and keys as `equipoise study --set` takes them. It may
start from a named one (`like`), draw with one seed (`seed`) and be one that the program may refuse (`refusable`). A "$name" in it is
replaced by the value of its own key "$name", and "$a - $b" by their difference. `trace` and `batch` have further forms (inputs.py).
A *table* has figures: what is printed, and how ours is measured. An *experiment* has rows, which begin with the cells of `is`, and
columns. The settings (`at`) of table, row or figure, column and cell are merged, later ones over earlier ones.

    measure   a function of measures.py and its arguments, e.g. ["speedup", "wlb-llm", "plain-4d"]
    over      a setting whose measure ours is divided by
    each      a list of settings whose values are combined: `combine` is mean, most or least
    change    what is made of the value: loss is 1 - 1 / value, percent is 100 (value - 1)

A cell with `list` shows one value for each of its settings. A number of windows is written {windows = 1.03} in a policy's options.
"""

import json
import tomllib
from functools import partial

from .figure import Experiment, Table, largest_of, mean_of, ratio
from .inputs import in_tokens, keys_of
from .measures import MEASURES, Case
from .runner import STUDIES

SHOWN = ("measure", "over", "each", "combine", "change")  # keys that say how a value is measured
COMBINE = {"mean": mean_of, "most": largest_of, "least": min}
CHANGE = {"loss": lambda slowdown: 1 - 1 / slowdown, "percent": lambda speedup: 100 * (speedup - 1)}
BALANCE = ("abr", "cr", "dbr", "pr")  # a figure whose name ends in one of these is of this kind


def filled(value, names):
    """A value with each "$name" in it replaced by what it names, and "$a - $b" by the difference."""
    if isinstance(value, str):
        first, minus, second = value.partition(" - ")
        if minus and first in names and second in names:
            return filled(first, names) - filled(second, names)
        return filled(names[value], names) if value in names else value
    if isinstance(value, list):
        return [filled(item, names) for item in value]
    if isinstance(value, dict):
        return {key: filled(item, names) for key, item in value.items()}
    return value


class Paper:
    def __init__(self, path):
        self.data = tomllib.loads(path.read_text(encoding="utf-8"))
        self.name, self.draws = self.data["paper"], self.data["draws"]
        self.hypothesis, self.cannot, self.not_here = (self.data.get(key, []) for key in ("hypothesis", "cannot", "not_here"))
        keys = {key: pair for choice in self.hypothesis for key, pair in choice.get("set", {}).items()}
        self.unchosen, self.chosen = ({key: pair[i] for key, pair in keys.items()} for i in (0, 1))

    @property
    def makers(self):
        """One function of a run for each table."""
        return [partial(self.experiment if "rows" in spec else self.table, spec) for spec in self.data["table"]]

    def setting(self, *parts):
        """The keys of all parts, each over those before it."""
        merged = {}
        for part in parts:
            if "like" in part:
                merged.update(self.setting(self.data["setting"][part["like"]]))
            merged.update({key: value for key, value in part.items() if key != "like"})
        return merged

    def listed(self, name):
        """The settings of a list; a text in it names a setting."""
        return [{"like": item} if isinstance(item, str) else item for item in self.data["list"][name]]

    def policy(self, entry):
        """A study's row; a name that the file defines is replaced by its options."""
        own = self.data.get("policy", {})
        if isinstance(entry, str):
            return own.get(entry, entry)
        return {**own.get(entry.get("like"), {}), **{key: value for key, value in entry.items() if key != "like"}}

    def measured(self, run, measure, *parts):
        """What a measure says of the merged setting; nothing where the program refuses a setting that may be `refusable`."""
        setting = self.setting(*parts)
        shipped = json.loads((STUDIES / f"{setting['study']}.json").read_text()) if "study" in setting else {}
        if "policies" in setting:
            setting["policies"] = [self.policy(entry) for entry in setting["policies"]]
        names = {key: value for key, value in setting.items() if key.startswith("$")}
        setting = filled({key: value for key, value in setting.items() if key not in names}, names)
        window = setting.get("batch.context_window", shipped.get("batch", {}).get("context_window"))
        setting = {key: in_tokens(value, window) for key, value in setting.items()}
        run = run.at(setting.pop("seed", run.seed))
        study, policies, refusable = (setting.pop(key, None) for key in ("study", "policies", "refusable"))
        name, *arguments = filled(measure, names)
        try:
            return MEASURES[name](Case(run, study, policies, keys_of(run, setting)), *arguments)
        except RuntimeError:
            if refusable:
                return None
            raise

    def value(self, run, spec, *parts):
        """What a figure or a cell shows: its measure, combined over a list, over another setting, changed as it says."""
        if "each" in spec:
            one = {key: value for key, value in spec.items() if key not in ("each", "combine")}
            return COMBINE[spec["combine"]]([self.value(run, one, *parts, part) for part in self.listed(spec["each"])])
        found = self.measured(run, spec["measure"], *parts)
        if "over" in spec:
            other = {"measure": spec["measure"], **spec["over"]}
            found = ratio(found, self.measured(run, other.pop("measure"), *parts, other))
        return CHANGE[spec["change"]](found) if "change" in spec and found is not None else found

    def table(self, spec, run):
        table = Table(self.name, spec["title"], spec.get("note", ""))
        shared = {key: spec[key] for key in ("measure", "how", "cannot", "unit", "kind", "small", "counted") if key in spec}
        for figure in spec["figures"]:
            figure = {"how": self.data.get("how", "predicted"), **shared, **figure}
            what, published = figure["what"], figure["published"]
            parts = (spec.get("at", {}), {"$label": figure.get("label", what)}, figure.get("at", {}))
            last = what.rpartition(": ")[2]
            table.add(
                what,
                published[0] / published[1] if isinstance(published, list) else published,
                self.value(run, figure, self.chosen, *parts),
                figure["how"],
                unchosen=self.value(run, figure, self.unchosen, *parts),
                kind=figure.get("kind", last if last in BALANCE else "ratio"),
                **{key: figure[key] for key in ("unit", "headline", "small", "cannot") if key in figure},
                **({"counted": tuple(figure["counted"])} if "counted" in figure else {}),
            )
        return table

    def experiment(self, spec, run):
        columns = [{"title": column} if isinstance(column, str) else column for column in spec["columns"]]
        table = Experiment(self.name, spec["title"], [column["title"] for column in columns], note=spec.get("note", ""))
        for row in spec["rows"]:
            cells, given = list(row.get("is", [])), iter(row.get("cells", []))
            for column in columns[len(cells) :]:
                cell = next(given, {})
                if isinstance(cell, dict):
                    how = {key: part[key] for part in (spec, row, column) for key in SHOWN if key in part}
                    names = {"$row": (cells or [""])[0], "$column": column["title"]}
                    parts = [self.chosen, *(part.get("at", {}) for part in (spec, row, column)), names]
                    several = row.get("list")
                    cell = [self.value(run, how, *parts, part) for part in several] if several else self.value(run, how, *parts, cell)
                cells.append(cell)
            table.rows.append(cells)
        return table
