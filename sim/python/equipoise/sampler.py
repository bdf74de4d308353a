"""A packing policy as the batch sampler of a PyTorch DataLoader."""

import hashlib
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

import numpy as np

from . import _core, own_policy
from ._values import flag, integer, json_text, lengths_array, path_of, refuse, unknown, utf8
from .plan import planned
from .study import Result

Piece = Union[int, Tuple[int, int, int]]  # a whole document, or document, begin, end
Place = Tuple[int, int, int]  # epoch, step, micro-batch of this lane in the step


def _in_thread(work, *arguments) -> Future:
    """Runs work(*arguments) on a thread of its own. It is no daemon, because a daemon that returned from C++ while
    Python ends would crash the process."""
    future: Future = Future()

    def run():
        try:
            future.set_result(work(*arguments))
        except BaseException as error:  # re-raised where the result is used
            future.set_exception(error)

    threading.Thread(target=run, name="equipoise-plan").start()
    return future


def _say_while(future: Future, what: str, patience: float = 3.0) -> None:
    """Waits for the future. After some seconds a line on stderr says what it waits for. In a terminal the line counts
    the seconds and disappears at the end; elsewhere a second line says how long it took."""
    begin, terminal = time.monotonic(), sys.stderr.isatty()
    if wait([future], patience).done:
        return
    print(f"{what} ...", end="" if terminal else "\n", file=sys.stderr, flush=True)
    while not wait([future], 1.0 if terminal else None).done:
        print(f"\r{what} ... {time.monotonic() - begin:.0f} s", end="", file=sys.stderr, flush=True)
    print("\r\033[K" if terminal else f"{what}: {time.monotonic() - begin:.0f} s\n", end="", file=sys.stderr, flush=True)


def _result(given: Any) -> Result:
    """The argument of from_study as one value: a study's Result, or the rows and the study of a saved summary.json."""
    if isinstance(given, Result):
        return given
    if not isinstance(given, (str, os.PathLike, Mapping)):
        refuse("result", "what equipoise.study returns, or its summary.json (a path or its values)", given)
    summary = dict(given) if isinstance(given, Mapping) else json.loads(_core.read_json(path_of("result", given)))
    if not isinstance(summary, dict) or summary.get("schema") != "equipoise.summary/1":
        found = summary.get("schema", "none") if isinstance(summary, dict) else f"{type(summary).__name__} of {len(summary)}"
        raise ValueError(
            f"result: schema: expected equipoise.summary/1, found {found}; one summary of a sweep's list is such, and a study runs as "
            "equipoise.study(PATH OF THE STUDY)"
        )
    values, rows = (summary.get("study") or {}).get("settings"), summary.get("policies")
    if not isinstance(values, dict) or not isinstance(rows, list) or len(values.get("policies", [])) != len(rows):
        raise ValueError(
            "result: study.settings: expected the study as it was read, an entry for each row, found another or none; "
            "pass what equipoise.study(PATH OF THE STUDY) returns"
        )
    folder = os.path.dirname((summary.get("receipt") or {}).get("file", ""))
    return Result(json_text(summary, "result"), "", "", "", "", [], source=json_text(values, "result"), directory=folder)


def _by_folder(value: Any, folder: str) -> Any:
    """Values of a study whose files are next to it, with paths that are valid elsewhere."""
    if isinstance(value, dict):
        return {key: _by_folder(one, folder) for key, one in value.items()}
    if not isinstance(value, str) or not (value.endswith(".json") or "/" in value):
        return value
    path = os.path.join(folder, value)
    return path if os.path.isfile(path) else value


def _job(values: Dict[str, Any], entry: Dict[str, Any], batch: Dict[str, Any], derived: Dict[str, Any]) -> Dict[str, Any]:
    """A row's study for other documents, to price and bound its plan: only that row, without a number of steps."""
    row = {key: value for key, value in entry.items() if key not in ("label", "published")}
    if "recompute_layers" in derived and entry["name"] != "equipoise":  # its micro-batches have their own
        row["recompute"] = {"layers": derived["recompute_layers"]}
    row.update((key, derived[key]) for key in ("schedule", "virtual_pipeline", "chunk_size", "keep") if key in derived)
    step = {key: value for key, value in batch.items() if key != "steps"}
    return {**{key: value for key, value in values.items() if key != "baseline"}, "batch": step, "policies": [row]}


def after(epoch: int, step: int, done: int, counts: List[int]) -> Place:
    """What follows so many micro-batches of a step: the last ends it, as the last step ends the epoch."""
    if done >= counts[step]:
        step, done = step + 1, 0
    return (epoch + 1, 0, 0) if step == len(counts) else (epoch, step, done)


class BatchSampler:
    """Micro-batches of one data-parallel replica, as a policy packs them. `lane` is its rank among the `lanes`
    replicas: all TP, CP and PP ranks of a replica have the same.

        sampler = equipoise.BatchSampler(lengths, "wlb", lanes=replicas, lane=replica, documents_per_step=256)
        data = equipoise.packed.PackedDataset(dataset)
        loader = DataLoader(data, batch_sampler=sampler, collate_fn=equipoise.packed.collate)

    Each item is a micro-batch: a list of documents of the dataset (with `slices=True` of (document, begin,
    end), for policies and loaders that cut documents). `steps()` gives them step by step instead, for
    gradient accumulation: how many a lane has may differ between steps and lanes.

    With `accumulate`, each lane has exactly so many in every step, as frameworks expect that count gradient accumulation
    steps, and all whose ranks wait for each other in every micro-batch (FSDP, ZeRO-3): micro-batches without
    documents, [], fill up, and a plan that has more is refused. It sets `micro_batches` to as many of all lanes.

    With `multiple`, the plan counts each document with the padding up to a multiple of so many tokens, which the loader adds: 2 x CP
    where context parallelism cuts each document. A plan that cuts documents elsewhere is refused.

    Every rank plans all lanes by itself and takes its own: plans are pure functions of lengths, options and
    epoch, so no rank has to tell another. An epoch is planned at once in a thread, without the interpreter's
    lock, while the one before it trains. `options` are those of `pack`, whose plan this is (`equipoise.explain(policy)`
    lists the policy's own). `tokens_per_step`
    replaces `documents_per_step`: as many whole documents as have so many tokens on the mean. What `pack(...).notes`
    says of them, such as an option without effect, is a warning once the plan is there; notes on a study's delay and on
    solvers are not.

    `policy` may be a function, too, f(lengths, options) or equipoise.policy(f, options={...}): called once an epoch, for
    all of its steps, as a study calls it, and its plan is looked at by the validator of all plans. It has to return the
    same on every rank, and after a resume, whose state knows the plan.

    With `reshuffle`, each epoch has the documents in another order, drawn from `seed` and the epoch.
    """

    def __init__(
        self,
        lengths: Any,
        policy: Union[str, own_policy.Own],
        *,
        lanes: int = 1,
        lane: int = 0,
        slices: bool = False,
        reshuffle: bool = False,
        seed: int = 0,
        tokens_per_step: Optional[int] = None,
        accumulate: Optional[int] = None,
        multiple: int = 1,
        **options: Any,
    ):
        self.lengths = lengths_array(lengths)
        self.multiple = integer("multiple", multiple, 1)
        self._counted = self.lengths if self.multiple == 1 else -(-self.lengths // self.multiple) * self.multiple  # what the policy packs
        self.lanes, self.seed = integer("lanes", lanes, 1), integer("seed", seed, 0)
        self.lane = integer("lane", lane, 0, self.lanes - 1)
        self.policy, self.name = policy, policy if isinstance(policy, str) else own_policy.parts(policy)[1]
        self.slices, self.reshuffle = flag("slices", slices), flag("reshuffle", reshuffle)
        given = {name: value for name, value in options.items() if value is not None}
        if tokens_per_step is not None:
            if "documents_per_step" in given:
                raise ValueError("tokens_per_step: expected it or documents_per_step, found both")
            tokens = integer("tokens_per_step", tokens_per_step, 1)
            given["documents_per_step"] = max(1, round(tokens / float(self.lengths.mean())))
        self._unsaid: Tuple[str, ...] = ()  # options that cause no warning if they have no effect
        self.accumulate = None if accumulate is None else integer("accumulate", accumulate, 1)
        if self.accumulate is not None and "micro_batches" not in given:
            given["micro_batches"] = self.accumulate * self.lanes
            self._unsaid = ("micro_batches",)
        self.context = given.get("context", 1)
        if policy == "equipoise" and given.get("start", "best") == "best":
            given.setdefault("own_degrees", False)  # because these lanes have one degree
        self._options = json_text({**given, "lanes": self.lanes, "seed": self.seed}, "BatchSampler")
        _core.check_request(utf8("policy", policy) if isinstance(policy, str) else "", self._options)
        self.place: Place = (0, 0, 0)  # what is to be handed out next
        self._noted = False
        self._start()

    @classmethod
    def from_study(
        cls, result: Union[Result, str, os.PathLike, Mapping], row: str, lengths: Any, *, lane: int = 0, **options: Any
    ) -> "BatchSampler":
        """The policy of a row as the study ran it, on the documents that are trained: its options, what was derived
        for it from memory, and the study's step, lanes, CP degree, prices and memory. `result` is what `study` returned, or
        the summary.json that it or `equipoise study --out` wrote, by its path or its values. `options` of the policy go before. A
        row of a function is packed by that function. Lanes of a sampler have one CP degree: `equipoise` packs with
        own_degrees false, which is slower than a row that chose degrees of its own.

        Returns when the first epoch is planned: a row that these lanes cannot run, or whose cut documents `slices` does
        not allow, is refused here."""
        for name in {"lanes", "policy"} & options.keys():
            refuse(name, "none with a row, which has its own", options[name])
        result = _result(result)
        labels = [other["label"] for other in result.policies]
        if row not in labels:
            raise ValueError(f"row: {unknown('row', row, labels)}")
        found, values = result[row], result.source
        layout, batch = values.get("parallel", {}), dict(values.get("batch", {}))
        place = labels.index(row)
        entry = values["policies"][place] if isinstance(values["policies"][place], dict) else {"name": values["policies"][place]}
        if found["status"] in ("refused", "unplaceable"):
            raise ValueError(f"row: expected one that can be packed, found {row}, {found['status']}: {found['reason']}")
        policy = result.functions.get(row, found["policy"])
        if policy == "plan":
            why = "function's, and functions stay in the process of their study" if entry["file"] == _core.PLAN_OF_CALLER else "file's"
            raise ValueError(
                f"row: expected one with a policy, found {row}, whose plan is a {why}: BatchSampler(lengths, policy, ...) takes one"
            )
        known = {key for key, _ in _core.pack_options()} - {"steps"} | {"cost"}  # the study has its own steps
        derived = {key: value for key, value in found["provenance"].get("derived", {}).items() if key != "candidates"}
        if options.get("tokens_per_step") is not None:
            batch.pop("documents_per_step", None)
        given: Dict[str, Any] = {"context": layout.get("context", 1)}
        if isinstance(policy, str):
            policy = entry["name"]  # the study's name, since wlb-llm is wlb with options of its own
            files = {key: _by_folder(values[key], result.directory) for key in ("cluster", "framework", "model") if key in values}
            given["job"] = _job({**values, **files}, entry, batch, derived)
        for part in (batch, entry, derived) if isinstance(policy, str) else (batch,):
            given.update({key: value for key, value in part.items() if key in known})
        given.update(options)
        fills = entry.get("remainder") == "pad" and (given.get("documents_per_step") or given.get("tokens_per_step")) is not None
        if policy == "equipoise" and given.get("start", "best") == "best" and given.get("own_degrees", True) and "own_degrees" not in options:
            warnings.warn(
                f"row {row}: lanes of a sampler have one CP degree, so it packs with own_degrees false; the row may have chosen "
                "degrees, and be faster: a study with own_degrees false shows these steps",
                stacklevel=2,
            )
        sampler = cls(lengths, policy, lanes=layout.get("data", 1), lane=lane, **given)
        # A study's batch serves all its rows, so keys that this policy does not use are no mistake.
        sampler._unsaid += tuple(key for key in batch if key not in {**(entry if isinstance(policy, str) else {}), **options})
        if sampler.lane == 0:  # because the other lanes wait for the same plan
            _say_while(sampler._plan_ahead(0), f"equipoise: packing {sampler.lengths.size:,} documents for row {row}")
        try:
            plan, order, _ = sampler._planned(0)
            if fills and sampler.context > 1 and "multiple" not in options:
                sampler.multiple = 2 * sampler.context  # for the loader; the row's policy counts padding by itself
                sampler._refuse_cuts(plan, order)
        except ValueError as error:
            raise ValueError(f"row {row}: {error}") from None
        return sampler

    def _start(self) -> None:
        self._plans: Dict[int, Future] = {}
        self._plan_ahead(self.epoch)

    # The functions below are about the current epoch.

    def _order(self, epoch: int) -> Optional[np.ndarray]:
        """Documents in the epoch's order. RandomState: NumPy keeps its stream the same in all versions."""
        if not self.reshuffle:
            return None
        return np.random.RandomState([self.seed & 0xFFFFFFFF, epoch]).permutation(self.lengths.size)

    def _make(self, epoch: int) -> Tuple[_core.PackedPlan, Optional[np.ndarray], bytes]:
        """The epoch's plan, the order of its documents, and a hash of a function's plan."""
        order = self._order(epoch)
        lengths = self._counted if order is None else self._counted[order]
        plan = planned(lengths, self.policy, self._options)
        for step in range(plan.steps):
            degrees = plan.degrees(step)
            if len(degrees) > self.lanes or set(degrees) - {int(self.context)}:
                raise ValueError(
                    f"policy: {self.name} gives step {step} lanes of CP degree {', '.join(map(str, degrees))}: expected "
                    f"the {self.lanes} of degree {self.context} of this sampler, or equipoise.pack, whose plan has them all"
                )
        most = max((max(plan.counts(lane), default=0) for lane in range(self.lanes)), default=0)
        if self.accumulate is not None and most > self.accumulate:
            raise ValueError(f"accumulate: expected at least {most}, as many micro-batches as {self.name} gives a lane in a step, found {self.accumulate}")
        self._refuse_cuts(plan, order)
        digest = hashlib.sha256()
        for step in range(plan.steps if not isinstance(self.policy, str) else 0):
            digest.update(repr([plan.micro_batches(step, lane) for lane in range(plan.lanes(step))]).encode())
        return plan, order, digest.digest()

    def _refuse_cuts(self, plan: _core.PackedPlan, order: Optional[np.ndarray]) -> None:
        """Refuses a plan that cuts a document; of slices, one with a piece that padding would make longer than the plan counts."""
        lengths = self.lengths if order is None else self.lengths[order]
        for index, begin, end in plan.first_cut(lengths, self.multiple) if self.slices else plan.first_cut(lengths):
            document = index if order is None else int(order[index])
            cut = f"document {document} of {self.lengths[document]} tokens to [{begin}, {end})"
            if self.slices:
                raise ValueError(
                    f"multiple: expected one that divides where the plan cuts documents (context_window, max_length, chunk_size ...), found "
                    f"{self.multiple}: the plan cuts {cut}"
                )
            raise ValueError(
                f"BatchSampler: the plan cuts {cut}: expected whole documents, as with documents_per_step and without "
                "max_length and oversize truncate or split, or slices=True, which gives (document, begin, end)"
            )

    def _plan_ahead(self, epoch: int) -> Future:
        key = epoch if self.reshuffle else 0  # without a new order every epoch has the same plan
        if key not in self._plans:
            self._plans = {e: f for e, f in self._plans.items() if e >= key - 1}
            self._plans[key] = _in_thread(self._make, key)
        return self._plans[key]

    def _planned(self, epoch: int) -> Tuple[_core.PackedPlan, Optional[np.ndarray], List[int]]:
        """The epoch's plan, the order of its documents, and how many micro-batches this lane hands out in each
        step."""
        plan, order, _ = self._plan_ahead(epoch).result()
        for note in [] if self._noted else plan.warnings:
            if not note.startswith(tuple(f"{key} has no effect" for key in self._unsaid)):
                warnings.warn(note, stacklevel=3)
        self._noted = True  # because the notes of other epochs are similar
        counts = plan.counts(self.lane)
        return plan, order, counts if self.accumulate is None else [self.accumulate] * len(counts)

    def _pieces(self, planned: List[Tuple[int, int, int]], order: Optional[np.ndarray]) -> List[Piece]:
        pieces: List[Piece] = []
        for index, begin, end in planned:
            document = index if order is None else int(order[index])
            if begin < self.lengths[document]:  # else it is of padding alone
                pieces.append((document, begin, min(end, int(self.lengths[document]))) if self.slices else document)
        return pieces

    # The functions below are about the whole run.

    @property
    def epoch(self) -> int:
        """The epoch that the next micro-batch is of, from 0."""
        return self.place[0]

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch, unless it is in that epoch already."""
        if integer("epoch", epoch, 0) != self.epoch:
            self.place = (epoch, 0, 0)
            self._plan_ahead(epoch)

    def __len__(self) -> int:
        """Micro-batches of this lane in the current epoch."""
        return sum(self._planned(self.epoch)[2])

    def rest(self, consumed: Optional[int] = None, epoch: Optional[int] = None) -> List[int]:
        """How many of this lane's micro-batches are left in each step that is left of the current epoch: what
        a loop over a DataLoader takes for one optimizer step after the other. The last may be 0: take the
        iterator to its end before the next epoch, `next(batches, None)`. An inner step without micro-batches of this lane
        counts as done only when the next micro-batch is handed out. A state saved before that repeats the step, which has no work;
        `equipoise.loader.Loader.steps` counts it at once.

        Counted are the micro-batches handed out. A DataLoader with worker processes asks for some as soon as it is
        iterated: ask before `iter(loader)`, or say how many of `epoch` this lane has trained on (`consumed`)."""
        epoch, first, done = self._place(consumed, epoch)
        counts = self._planned(epoch)[2][first:]
        return [counts[0] - done, *counts[1:]] if counts else []

    def __iter__(self) -> Iterator[List[Piece]]:
        """The rest of the current epoch, one micro-batch after the other."""
        for step in self.steps():
            yield from step

    def steps(self) -> Iterator["StepBatches"]:
        """The rest of the current epoch, step by step: each an iterable of this lane's micro-batches, which
        may be none where other lanes have some."""
        epoch, first, done = self.place
        plan, order, counts = self._planned(epoch)
        self._plan_ahead(epoch + 1)
        for step in range(first, len(counts)):
            lane = plan.micro_batches(step, self.lane) if self.lane < plan.lanes(step) else []
            micro_batches = [self._pieces(m, order) for m in lane if m]
            micro_batches += [[] for _ in range(counts[step] - len(micro_batches))]
            if not micro_batches:
                self.place = after(epoch, step, 0, counts)
            yield StepBatches(self, epoch, step, micro_batches, done if step == first else 0, counts)

    # Resuming.

    def _settings(self, epoch: int) -> Dict[str, Any]:
        """Everything that decides the micro-batches, with lengths and a function's plan as hashes."""
        settings = {"lengths": hashlib.sha256(self.lengths.tobytes()).hexdigest(), "policy": self.name, **json.loads(self._options)}
        if not isinstance(self.policy, str):  # a function is represented by what it returns
            settings["plan"] = self._plan_ahead(epoch).result()[2].hex()
        settings.update({"accumulate": self.accumulate} if self.accumulate is not None else {})
        settings.update({"multiple": self.multiple} if self.multiple > 1 else {})
        return {**settings, "reshuffle": self.reshuffle, "slices": self.slices}

    def state_dict(self, consumed: Optional[int] = None, epoch: Optional[int] = None) -> Dict[str, Any]:
        """Where the run is. Counted are the micro-batches handed out; a DataLoader with worker processes asks
        for some ahead, so tell it there how many of an epoch this lane has trained on (`consumed`, of
        `epoch`). At the beginning of a step it is every lane's; inside of one it is this lane's alone."""
        return self.state_at(self._place(consumed, epoch))

    def state_at(self, place: Place) -> Dict[str, Any]:
        """The state of a run in which a place comes next."""
        return {
            "version": 1,
            **dict(zip(("epoch", "step", "micro_batch"), place)),
            "lane": self.lane,
            "settings": self._settings(place[0]),
        }

    def _place(self, consumed: Optional[int], epoch: Optional[int]) -> Place:
        """Epoch, step and micro-batch that come next: after those handed out, or after so many trained on."""
        if consumed is None:
            return self.place
        return self._place_after(self.epoch if epoch is None else integer("epoch", epoch, 0), consumed)

    def _place_after(self, epoch: int, micro_batches: int) -> Place:
        """What follows so many micro-batches of this lane: epoch, step, micro-batch of the step. A step in which
        the lane has none is not passed over: others may have some."""
        counts = self._planned(epoch)[2]
        integer("consumed", micro_batches, 0, sum(counts))
        for step, count in enumerate(counts):
            if micro_batches < max(count, 1):
                return epoch, step, micro_batches
            micro_batches -= count
        return epoch + 1, 0, 0

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes to where `state_dict` was taken, on the same documents with the same policy, options and
        lanes. Raises ValueError of another run's state, with what differs, and of one inside a step of another lane."""
        if not isinstance(state, dict) or state.get("version") != 1:
            refuse("state: version", "1, as state_dict gives it", state.get("version") if isinstance(state, dict) else state)
        place = [state.get(key) for key in ("epoch", "step", "micro_batch")]
        if not all(isinstance(value, int) and value >= 0 for value in place):
            raise ValueError(f"state: expected epoch, step and micro_batch >= 0, found {place}")
        epoch, step, done = place
        here, there = self._settings(epoch), state.get("settings")
        if not isinstance(there, dict):
            refuse("state: settings", "those of these lengths, policy, options and lanes", there)
        differ = [key for key in {**here, **there} if here.get(key) != there.get(key)]
        if differ:
            said = [key if key in ("lengths", "plan") else f"{key} {there.get(key)} ({here.get(key)} here)" for key in differ]
            raise ValueError(
                "state: settings: expected those of these lengths, policy, options and lanes, found other "
                f"{', '.join(said)}: its micro-batches would not be those that were left"
            )
        if done > 0 and state.get("lane") != self.lane:
            refuse("state: lane", f"{self.lane}, or the beginning of a step, where all lanes are", state.get("lane"))
        counts = self._planned(epoch)[2]
        if step >= len(counts) or done > counts[step]:
            raise ValueError(
                f"state: expected a step below {len(counts)} and one of its micro-batches, found {place}"
            )
        self.place = (epoch, step, done)

    def __getstate__(self) -> Dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_plans"}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()


class StepBatches:
    """The micro-batches of one lane in one optimizer step, from where a resumed run goes on."""

    def __init__(
        self,
        sampler: BatchSampler,
        epoch: int,
        step: int,
        micro_batches: List[List[Piece]],
        done: int,
        counts: List[int],
    ):
        self.step = step  # its number in the epoch
        self.micro_batches = micro_batches  # all of the step's, including those before a resume
        self._sampler, self._epoch, self._done, self._counts = sampler, epoch, done, counts

    def __len__(self) -> int:
        return len(self.micro_batches)

    def __iter__(self) -> Iterator[List[Piece]]:
        for place in range(self._done, len(self.micro_batches)):
            self._sampler.place = after(self._epoch, self.step, place + 1, self._counts)
            yield self.micro_batches[place]
