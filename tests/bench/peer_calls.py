#!/usr/bin/env python3
"""What one peer takes for one problem, in a process of its own; peers.py runs it.

  python3 tests/bench/peer_calls.py PEER PROBLEM.json [FOLDER]

A peer is an installed distribution, or the folder of its sources. Prints one line of JSON: `call`, CPU seconds of the
peer's own function, for what-ifs of one job; `process`, those of Python, imports, compilation, input and that function;
`version`; `answer`.
A peer whose function is in one file is read from that file alone, with placeholders for large packages that the file
imports and the function does not need. Status 2: the peer is not there."""
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import logging
import pathlib
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Callable

# --- where a peer comes from ---------------------------------------------------------------------------------------


class Placeholder:
    """Whatever a module that is not installed would have: a base class, a decorator, a logger."""

    def __init__(self, *_, **__):
        pass

    def __class_getitem__(cls, _):
        return cls

    def __getattr__(self, _):
        return Placeholder()

    def __call__(self, *_, **__):
        return Placeholder()


class Placeholders(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of the given packages, and gives it whatever is asked of it."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.packages else None

    def create_module(self, spec):
        module = type(sys)(spec.name)
        module.__getattr__ = self.attribute
        return module

    @staticmethod
    def attribute(name):
        if name.startswith("__"):
            raise AttributeError(name)  # the import system asks for what a module has of its own
        return type(name, (Placeholder,), {})

    def exec_module(self, module):
        pass


class NotThere(Exception):
    pass


class Source:
    """A peer's files: those of `folder` where one is given, else of the installed distribution."""

    def __init__(self, distribution, folder=None):
        self.distribution, self.folder = distribution, folder and pathlib.Path(folder)

    def file(self, path):
        """The file of that path, wherever in the folder the path begins; in a folder also the file of that name alone."""
        if self.folder:
            named = sorted(self.folder.rglob(pathlib.PurePath(path).name))
            found = [f for f in named if f.as_posix().endswith(path)] or named
        else:
            found = [pathlib.Path(self.installed().locate_file(path))]
        if not found or not found[0].exists():
            raise NotThere(f"{self.folder or self.distribution} has no {path}")
        return found[0]

    def installed(self):
        try:
            return importlib.metadata.distribution(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            raise NotThere(f"{self.distribution} is not installed, and no folder is named")

    def version(self):
        """Of a distribution its number, of a folder the date and commit of its sources."""
        if not self.folder:
            return self.installed().version
        git = subprocess.run(["git", "-C", self.folder, "log", "-1", "--format=%cs, %h"], capture_output=True, text=True)
        return git.stdout.strip() or "a folder"

    def module(self, path, without=()):
        """The one file as a module, with placeholders for the packages that it imports and what we call does not need."""
        spec = importlib.util.spec_from_file_location(pathlib.PurePath(path).stem, self.file(path))
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up there
        finder = Placeholders(without)
        sys.meta_path.insert(0, finder)
        try:
            spec.loader.exec_module(module)
        finally:
            sys.meta_path.remove(finder)
        return module

    def package(self, name):
        """The whole package, with everything that it needs."""
        if self.folder:
            sys.path.insert(0, str(self.folder))
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as missing:
            raise NotThere(f"{self.folder or self.distribution}: {missing}")


# --- packers and balancers -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packer:
    """`size` is the tokens of a pack or the number of parts. `run` is what is timed; `packs` makes lists of lengths of
    its result."""

    distribution: str
    load: Callable  # Source -> module
    run: Callable  # module, prepared lengths, size -> result
    packs: Callable = lambda result, lengths: result
    prepare: Callable = list  # lengths -> as the peer wants them


def by_index(result, lengths):
    return [[lengths[i] for i in pack] for pack in result]


def integers(lengths):
    import numpy

    return numpy.array(lengths, dtype=numpy.int64)


def table_of_lists(lengths):
    """An Arrow table of documents whose tokens take no memory, so that TRL moves none."""
    import numpy
    import pyarrow

    ends = numpy.concatenate(([0], numpy.cumsum(lengths)))
    lists = pyarrow.LargeListArray.from_arrays(pyarrow.array(ends), pyarrow.nulls(int(ends[-1])))
    return pyarrow.table({"input_ids": lists})


OPENCHAT_LANES = 8


def openchat(module, lengths, capacity, rank=0):
    """Every rank computes all steps and keeps its own packs, so one rank's call is what a step's packing costs."""
    return module, lengths, capacity, module.allocate(lengths, lengths.cumsum(), rank, capacity, OPENCHAT_LANES)[0]


def openchat_packs(result, lengths):
    module, array, capacity, first = result
    others = [openchat(module, array, capacity, rank)[3] for rank in range(1, OPENCHAT_LANES)]
    return by_index([pack for packs in (first, *others) for pack in packs], lengths)


PACKERS = {
    "trl": Packer("trl", lambda source: source.module("trl/data_utils.py", ["datasets", "transformers"]),
                  lambda module, table, capacity: module._pack_bfd(table, capacity),
                  lambda table, _: table["seq_lengths"].to_pylist(), table_of_lists),
    "megatron-bridge": Packer("megatron-bridge", lambda source: source.module("megatron/bridge/data/packing/algorithms.py", ["megatron"]),
                              lambda module, lengths, capacity: module.first_fit_decreasing(lengths, capacity)),
    "nemo": Packer("nemo-toolkit", lambda source: source.module("nemo/utils/sequence_packing_utils.py", ["nemo"]),
                   lambda module, lengths, capacity: module.first_fit_decreasing(lengths, capacity)),
    # Groups of 100,000 documents and at most 200 in a pack are its defaults.
    "axolotl": Packer("axolotl", lambda source: source.module("axolotl/utils/samplers/multipack.py", ["torch", "axolotl"]),
                      lambda module, lengths, capacity: module.pack_parallel(lengths, capacity, 100_000, 200, 1),
                      by_index, integers),
    "axolotl-sequential": Packer("axolotl", lambda source: source.module("axolotl/utils/samplers/multipack.py", ["torch", "axolotl"]),
                                 lambda module, lengths, capacity: module.allocate_sequentially(lengths, 0, capacity, 1)[0],
                                 by_index, integers),
    "openchat": Packer("multipack-sampler", lambda source: source.module("multipack_sampler.py", ["torch"]), openchat, openchat_packs,
                       integers),
    "llamafactory": Packer("llamafactory", lambda source: source.module("llamafactory/data/processor/processor_utils.py"),
                           lambda module, lengths, capacity: module.greedy_knapsack(lengths, capacity)),
    "binpacking": Packer("binpacking", lambda source: source.package("binpacking"),
                         lambda module, lengths, capacity: module.to_constant_volume(lengths, capacity)),
    "binpacking-parts": Packer("binpacking", lambda source: source.package("binpacking"),
                               lambda module, lengths, parts: module.to_constant_bin_number(lengths, parts)),
    "prtpy": Packer("prtpy", lambda source: source.package("prtpy"),
                    lambda module, lengths, capacity: module.pack(algorithm=module.packing.first_fit_decreasing,
                                                                  binsize=capacity, items=lengths)),
    "prtpy-parts": Packer("prtpy", lambda source: source.package("prtpy"),
                          lambda module, lengths, parts: module.partition(algorithm=module.partitioning.kk, numbins=parts,
                                                                          items=lengths)),
    "verl": Packer("verl", lambda source: source.module("verl/utils/seqlen_balancing.py", ["torch", "verl"]),
                   lambda module, lengths, parts: module.get_seqlen_balanced_partitions(lengths, parts, False), by_index),
}


def packing_answer(lengths, packs):
    """Packs, documents in them, and tokens of the largest; refuses packs that hold a document that there is not."""
    left = {}
    for length in lengths:
        left[length] = left.get(length, 0) + 1
    for length in (int(length) for pack in packs for length in pack):
        left[length] = left.get(length, 0) - 1
    if min(left.values()) < 0:
        raise ValueError("a document is packed twice, or is none of the problem's")
    return {"packs": len(packs), "placed": len(lengths) - sum(left.values()),
            "largest": max(sum(int(length) for length in pack) for pack in packs)}


def pack(name, source, problem):
    """problem: {"lengths": a file, "documents": how many of it, "size": tokens or parts}"""
    packer = PACKERS[name]
    lengths = [int(x) for x in pathlib.Path(problem["lengths"]).read_text().split()[: problem["documents"]]]
    module = packer.load(source)
    few = [min(length, problem["size"]) for length in lengths[:1000]]
    packer.run(module, packer.prepare(few), problem["size"])  # compiles what is compiled at the first call
    prepared = packer.prepare(lengths)
    call, result = timed(lambda: packer.run(module, prepared, problem["size"]))
    return call, lambda: packing_answer(lengths, packer.packs(result, lengths))


# --- what-ifs: a step of equal sequences on layouts ----------------------------------------------------------------

LLAMA2_7B = {"hidden": 4096, "layers": 32, "heads": 32, "feed_forward": 11008, "vocabulary": 32000}
SEQUENCE = 4096


def calculon(source):
    """Its MLP has two matrices; half as wide again, they have as many weights as Llama's three."""
    package = source.package("calculon")
    llm = source.package("calculon.llm").Llm
    shape = LLAMA2_7B
    application = llm.Application({
        "name": "llama2-7b", "hidden": shape["hidden"], "feedforward": shape["feed_forward"] * 3 // 2, "seq_size": SEQUENCE,
        "attn_heads": shape["heads"], "attn_size": shape["hidden"] // shape["heads"], "num_blocks": shape["layers"]})
    system = package.System(json.loads(source.file("systems/a100_80g.json").read_text()))

    def step(job):
        execution = llm.Execution.from_json({
            "num_procs": job["gpus"], "tensor_par": job["tensor"], "pipeline_par": job["pipeline"], "data_par": job["data"],
            "tensor_par_net": 0, "pipeline_par_net": 1, "data_par_net": 1, "batch_size": job["sequences"],
            "microbatch_size": 1, "datatype": "float16", "fused_activation": True, "attention_type": "multihead",
            "activation_recompute": "none", "pipeline_interleaving": 1, "optimizer_sharding": job["data"] > 1,
            "tensor_par_comm_type": "rs_ag", "tensor_par_overlap": "none", "seq_par_ag_redo": False,
            "data_par_overlap": False, "weight_offload": False, "activations_offload": False, "optimizer_offload": False,
            "training": True})
        model = llm(application, logging.getLogger("calculon"))
        model.compile(system, execution)
        model.run(system)
        of_it = model.get_stats_json(False)
        block = sum(of_it[f"block_{part}_flops"] for part in ("fw", "agrad", "wgrad"))
        return of_it["total_time"], block * job["tensor"] * shape["layers"] * job["sequences"]

    return step


def llm_analysis(source):
    package = source.package("llm_analysis.analysis")
    model = pathlib.Path(package.__file__).parent / "model_configs/NousResearch_Llama-2-7b-hf.json"

    def step(job):
        of_it = package.train(
            model_name=str(model), gpu_name="a100-sxm-80gb", dtype_name="w16a16e16", log_level="ERROR",
            batch_size_per_gpu=1, gradient_accumulation_steps=job["sequences"] // job["data"], seq_len=SEQUENCE, ds_zero=1,
            tp_size=job["tensor"], pp_size=job["pipeline"], total_num_gpus=job["gpus"], activation_recomputation=0,
            flops_efficiency=0.5, mlp_gated_linear_units=True)
        return of_it["latency_per_iter"], of_it["num_flops_total_per_micro_batch"] * job["sequences"]

    return step


def simumax(source):
    config = source.package("simumax.core.config")
    performance = source.package("simumax.core.perf_llm").PerfLLM

    def step(job):
        strategy = config.StrategyConfig.init_from_config_file(str(source.file("configs/strategy/tp2_pp1_dp4_mbs1.json")))
        strategy.world_size, strategy.tp_size, strategy.pp_size = job["gpus"], job["tensor"], job["pipeline"]
        strategy.micro_batch_num, strategy.enable_recompute = job["sequences"] // job["data"], False
        model = performance()
        model.configure(strategy_config=strategy,
                        model_config=config.ModelConfig.init_from_config_file(str(source.file("configs/models/llama2-7b.json"))),
                        system_config=config.SystemConfig.init_from_config_file(str(source.file("configs/system/a100_pcie.json"))))
        model.run_estimate()
        cost = model.analysis_cost()
        of_it = cost.data if hasattr(cost, "data") else cost
        return seconds(of_it["duration_time_per_iter"]), flops(of_it["flops_info"]["theory_flops"]) * job["gpus"]

    return step


def seconds(text):
    """'1.3 s' or '24.1 ms'"""
    value, unit = text.split()
    return float(value) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit]


def flops(text):
    """'15.46 T'"""
    value, unit = text.split()
    return float(value) * {"G": 1e9, "T": 1e12, "P": 1e15}[unit]


WHAT_IFS = {"calculon": ("calculon", calculon), "llm-analysis": ("llm-analysis", llm_analysis), "simumax": ("simumax", simumax)}


def what_ifs(name, source, problem):
    """problem: {"jobs": layouts}. `call` is that of one job."""
    step, jobs = WHAT_IFS[name][1](source), problem["jobs"]

    def answer(job):
        try:
            return step(job)
        except Exception as refused:  # each peer has its own kinds
            return str(refused) or type(refused).__name__

    answer(jobs[0])
    call, answers = timed(lambda: [answer(job) for job in jobs])
    return call / len(jobs), lambda: steps_answer(jobs, answers)


def steps_answer(jobs, answers):
    """answers: seconds and FLOPs of each job's step, or why it is refused"""
    steps = [(*answer, job) for job, answer in zip(jobs, answers) if not isinstance(answer, str)]
    if not steps:
        raise ValueError(f"every job is refused: {answers[0]}")
    seconds_, flops_, job = min(steps, key=lambda step: step[0])
    return {"steps": len(steps), "of": len(jobs), "flops": flops_, "fastest": job, "seconds": seconds_}


# --- one measurement -----------------------------------------------------------------------------------------------


def timed(work):
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def folder_name(name):
    """What a user calls the peer; two functions of one peer have names of their own."""
    return re.sub("-(parts|sequential)$", "", name)


def source_of(name, folder):
    return Source(PACKERS[name].distribution if name in PACKERS else WHAT_IFS[name][0], folder)


def main(name, problem, folder=None):
    source = source_of(name, folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            call, answer = (pack if name in PACKERS else what_ifs)(name, source, json.loads(pathlib.Path(problem).read_text()))
            process = time.process_time()
            of_it = {"call": call, "process": process, "version": source.version(), "answer": answer()}
    except (NotThere, ModuleNotFoundError) as missing:
        print(missing, file=sys.stderr)
        return 2
    print(json.dumps(of_it))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
