#!/usr/bin/env python3
"""Measures on a GPU what PyTorch takes for what this program's own kernels do not cover: its host, FP8 and grouped
products, FlashAttention-2 on packed documents, and whole transformer layers over them.

    torch_gpu.py OUT.json [--lengths FILE] [--parts host,attention,grouped,fp8,layers,power] [--tiny]

OUT.json is a samples file that `equipoise fit` reads (attention, products), with `host`, `uneven_groups`, `layers` and
`power` next to the samples. It is written anew after each part; a part that fails states its reason under `failed`.
--lengths has one document length a line (a trace unpacked). --tiny runs small calls on the CPU, to try the script.
Times are seconds. Of attention and products: the median of five batches between two events, `spread` their interquartile
range over it; the GPU spins while a batch is issued, so that no time holds the host. Of layers: the median of seven
steps, `spread` the second to the sixth over it. `host` is wall time of kernels too small to fill the GPU.
"""
import argparse
import json
import random
import statistics
import sys
import time
import traceback

import torch
import torch._dynamo
import torch.nn.functional as F

HELD_BYTES = 256 << 20  # total size of the buffers that take turns, beyond any cache


class Machine:
    def __init__(self, tiny):
        self.tiny = tiny
        self.device = "cpu" if tiny else "cuda"

    def random(self, *shape, dtype=torch.bfloat16, scale=1.0):
        return (torch.randn(*shape, device=self.device, dtype=torch.float32) * scale).to(dtype)

    def finish(self):
        if not self.tiny:
            torch.cuda.synchronize()

    def seconds(self, calls, batch_seconds=0.012):
        """The time of one call; `calls` do the same on different buffers and are taken in turn."""
        calls[0]()
        self.finish()
        begin = time.perf_counter()
        calls[-1]()
        host = time.perf_counter() - begin
        self.finish()
        one = max(time.perf_counter() - begin, 2e-6)
        if self.tiny:
            return {"seconds": one, "spread": 0.0}
        count = max(1, min(200, int(batch_seconds / one)))
        found = []
        for _ in range(5):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(int(2e9 * min(0.05, 1.5 * host * count + 1e-4)))
            start.record()
            for i in range(count):
                calls[i % len(calls)]()
            stop.record()
            self.finish()
            found.append(start.elapsed_time(stop) * 1e-3 / count)
        found.sort()
        return {"seconds": found[2], "spread": (found[3] - found[1]) / found[2]}

    def sets(self, make, most=6):
        """Buffers of one call, made until HELD_BYTES of them are there."""
        made = [make()]
        size = sum(t.numel() * t.element_size() for t in made[0] if torch.is_tensor(t))
        while len(made) < min(most, 1 + HELD_BYTES // max(1, size)) and not self.tiny:
            made.append(make())
        return made


def host(machine, _):
    """Seconds of the host a launch: tiny kernels, so that the GPU waits for the host all the time."""
    x = machine.random(64, 64)
    layer = Layer(machine, hidden=64, heads=1, kv_heads=1, inner=128)
    rows = machine.random(64, 64).requires_grad_()
    call = packed_call([64], machine)

    def loop(body, count):
        body()
        machine.finish()
        best = []
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(count):
                body()
            machine.finish()
            best.append((time.perf_counter() - begin) / count)
        return statistics.median(best)

    def kernels_of(body):
        if machine.tiny:
            return 1
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            body()
            machine.finish()
        return sum(e.count for e in profile.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA)

    def forward():
        with torch.no_grad():
            layer(rows, call)

    def both():
        layer(rows, call).sum().backward()

    result = {"add_": loop(lambda: x.add_(1), 2000), "linear": loop(lambda: F.linear(x, x), 2000)}
    for name, body in (("layer_forward", forward), ("layer_forward_backward", both)):
        result[name] = {"seconds": loop(body, 100), "kernels": kernels_of(body)}
        result[name]["seconds_per_launch"] = result[name]["seconds"] / result[name]["kernels"]
    return {"host": result}


def power(machine, _):
    """Watts of the board by kind of work, from its energy counter over three seconds each."""
    if machine.tiny:
        return {"power": {}}
    import pynvml
    pynvml.nvmlInit()
    board = pynvml.nvmlDeviceGetHandleByIndex(0)

    def watts(body, seconds=3.0):
        clocks, end = [], time.perf_counter() + 0.5
        while time.perf_counter() < end:  # settle
            body()
        joule, begin = pynvml.nvmlDeviceGetTotalEnergyConsumption(board), time.perf_counter()
        while time.perf_counter() < begin + seconds:
            body()
            clocks.append(pynvml.nvmlDeviceGetClockInfo(board, pynvml.NVML_CLOCK_SM))
        joule = pynvml.nvmlDeviceGetTotalEnergyConsumption(board) - joule
        return {"watts": joule * 1e-3 / (time.perf_counter() - begin), "clock_mhz": statistics.median(clocks)}

    def finished(call, count):
        def body():
            for _ in range(count):
                call()
            machine.finish()
        return body

    a, b, target = machine.random(8192, 8192), machine.random(8192, 8192), machine.random(8192, 8192)
    q, k, v = machine.random(32768, 32, 128), machine.random(32768, 8, 128), machine.random(32768, 8, 128)
    call = packed_call([32768], machine)
    source, copy = (torch.ones(1 << 30, dtype=torch.float32, device="cuda") for _ in range(2))
    q.requires_grad_(), k.requires_grad_(), v.requires_grad_()
    gradient = machine.random(32768, 32, 128)

    def attend_and_back():
        q.grad = k.grad = v.grad = None
        attend(q, k, v, call).backward(gradient)

    return {"power": {"idle": watts(lambda: time.sleep(0.05)),
                      "gemm": watts(finished(lambda: torch.mm(a, b, out=target), 40)),
                      "attention": watts(finished(attend_and_back, 4)),
                      "memory": watts(finished(lambda: copy.copy_(source), 20))}}


LINEAR = {"llama3.1-8b": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
          "llama3.1-70b tp 8": ((1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584)),
          "qwen2.5-14b": ((7168, 5120), (5120, 5120), (27648, 5120), (5120, 13824)),
          "llama2-7b": ((12288, 4096), (22016, 4096), (4096, 11008))}


def fp8(machine, _):
    """torch._scaled_mm (cuBLASLt), a scale a tensor and a scale a row; (m, k) by (n, k) transposed, without the cast."""
    rows = []
    for model, shapes in LINEAR.items():
        for n, k in ((64, 32),) if machine.tiny else shapes:
            for m in (16,) if machine.tiny else (1024, 4096, 16384):
                # a CPU has only one scale per tensor
                for scaling in ("tensor",) if machine.tiny else ("tensor", "row"):
                    one = [(m, 1), (1, n)] if scaling == "row" else [(), ()]
                    scales = [torch.ones(size, device=machine.device) for size in one]

                    def make():
                        return (machine.random(m, k).to(torch.float8_e4m3fn), machine.random(n, k).to(torch.float8_e4m3fn))

                    calls = [lambda a=a, b=b: torch._scaled_mm(a, b.t(), scale_a=scales[0], scale_b=scales[1],
                                                               out_dtype=torch.bfloat16, use_fast_accum=True)
                             for a, b in machine.sets(make)]
                    rows.append({"what": model, "m": m, "n": n, "k": k, "dtype": "fp8", "kernel": f"torch-{scaling}-scale",
                                 **machine.seconds(calls)})
    return {"samples": {"gemm": rows}}


EXPERTS = {"qwen3-30b-a3b ep 8": (16, 2048, 768), "deepseek-v2 ep 8": (20, 5120, 1536), "mixtral-8x7b ep 2": (4, 4096, 14336),
           "moonlight ep 8": (8, 2048, 1408), "deepseek-v3 ep 32": (8, 7168, 2048)}


def grouped(machine, _):
    """torch's grouped_mm: gate and up of all experts in one call, and its two gradients; equal and uneven loads."""
    rows, uneven = [], []
    for model, (experts, hidden, inner) in EXPERTS.items():
        n, k = (64, 32) if machine.tiny else (2 * inner, hidden)
        for tokens in (64,) if machine.tiny else (64, 256, 1024, 4096):
            for load in ("equal", "uneven"):
                of_expert = [tokens] * experts
                if load == "uneven":  # the same total, with about three times the mean for the busiest expert
                    draw = random.Random(experts + tokens)
                    weights = [draw.lognormvariate(0, 0.7) for _ in of_expert]
                    of_expert = [max(16, int(tokens * experts * w / sum(weights)) // 16 * 16) for w in weights]
                ends = torch.tensor([sum(of_expert[:i + 1]) for i in range(experts)], dtype=torch.int32, device=machine.device)
                m = sum(of_expert)

                def make():
                    return machine.random(m, k), machine.random(experts, n, k), machine.random(m, n)

                sets = machine.sets(make, 3)
                mean = m // experts
                products = {"NT": ((mean, n, k), lambda x, w, d: F.grouped_mm(x, w.transpose(1, 2), offs=ends)),
                            "NN": ((mean, k, n), lambda x, w, d: F.grouped_mm(d, w, offs=ends)),
                            "TN": ((n, k, mean), lambda x, w, d: F.grouped_mm(d.t(), x, offs=ends))}
                for form, (shape, product) in products.items():
                    row = {"what": model, "groups": experts, "experts": experts, "hidden": hidden, "inter": inner,
                           **dict(zip("mnk", shape)), "form": form, "dtype": "bf16", "kernel": "torch-grouped",
                           **machine.seconds([lambda s=s: product(*s) for s in sets])}
                    if load == "equal":
                        rows.append(row)
                    else:
                        uneven.append({**row, "rows": of_expert})
    return {"samples": {"gemm": rows}, "uneven_groups": uneven}


def packed_call(pieces, machine):
    """Offsets of a packed call; a piece is a document, or (queries, keys) of one."""
    pairs = [p if isinstance(p, tuple) else (p, p) for p in pieces]
    ends = [[0], [0]]
    for pair in pairs:
        for side in (0, 1):
            ends[side].append(ends[side][-1] + pair[side])
    offsets = [torch.tensor(e, dtype=torch.int32, device=machine.device) for e in ends]
    return {"pairs": pairs, "offsets": offsets, "most": [max(p[side] for p in pairs) for side in (0, 1)]}


def attend(q, k, v, call):
    """FlashAttention-2, causal and bottom-right."""
    if q.device.type == "cpu":
        return q * 1.0 + 0 * k.sum() + 0 * v.sum()
    from torch.nn.attention.varlen import varlen_attn
    return varlen_attn(q, k, v, *call["offsets"], *call["most"], window_size=(-1, 0))


def attention(machine, lengths):
    rows = []
    cases = [(heads, list(pieces)) for heads in ((32, 8, 128), (8, 1, 128), (16, 16, 64))
             for pieces in ([8192], [2048] * 8, [512] * 32, [128] * 128, [32768])]
    cases += [((32, 8, 128), window(lengths, tokens, seed)) for tokens in (8192, 32768, 131072) for seed in range(4)]
    for ranks in (2, 8):  # a rank's share of per-document sharding: the first and last of 2 * ranks chunks,
                          # with all keys before
        for seed in range(3):
            documents = [d // (2 * ranks) for d in window(lengths, 65536, 10 + seed) if d >= 4 * ranks]
            cases.append(((32, 8, 128), [(d, d) for d in documents] + [(d, 2 * ranks * d) for d in documents]))
    for (heads, kv_heads, head_dim), pieces in cases[::9] if machine.tiny else cases:
        if machine.tiny:
            pieces = [16, 32]
        call = packed_call(pieces, machine)
        queries, keys = (sum(p[side] for p in call["pairs"]) for side in (0, 1))

        def make():
            return tuple(machine.random(n, h, head_dim).requires_grad_()
                         for n, h in ((queries, heads), (keys, kv_heads), (keys, kv_heads)))

        sets = machine.sets(make, 3)
        gradient = machine.random(queries, heads, head_dim)
        forward = [lambda s=s: attend(*[t.detach() for t in s], call) for s in sets]
        outs = [(attend(*s, call), s) for s in sets]
        backward = [lambda o=o, s=s: torch.autograd.grad(o, s, gradient, retain_graph=True) for o, s in outs]
        for name, calls in (("forward", forward), ("backward", backward)):
            rows.append({"pass": name, "kernel": "flash-attention-2", "dtype": "bf16", "head_dim": head_dim,
                         "query_heads": heads, "kv_heads": kv_heads, "pieces": call["pairs"], **machine.seconds(calls)})
    return {"samples": {"attention": rows}}


def window(lengths, tokens, seed):
    """Documents drawn from `lengths` until they fill `tokens`; the last is cut."""
    draw, documents = random.Random(seed), []
    while sum(documents) < tokens:
        documents.append(min(draw.choice(lengths), tokens - sum(documents)))
    return documents


def before_attention(x, norm, qkv, cosine, sine, heads, kv_heads):
    rows, hidden = x.shape
    d = cosine.shape[1] * 2
    out = F.linear(F.rms_norm(x, (hidden,), norm, 1e-5), qkv).view(rows, heads + 2 * kv_heads, d)
    turned, v = out[:, :heads + kv_heads], out[:, heads + kv_heads:]
    low, high = turned[..., :d // 2].float(), turned[..., d // 2:].float()
    c, s = cosine[:, None], sine[:, None]
    turned = torch.cat((low * c - high * s, high * c + low * s), -1).to(x.dtype)
    return turned[:, :heads].contiguous(), turned[:, heads:].contiguous(), v.contiguous()


def after_attention(x, o, out, norm, gate_up, down):
    x = x + F.linear(o.flatten(1), out)
    gate, up = F.linear(F.rms_norm(x, (x.shape[1],), norm, 1e-5), gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down)


class Layer(torch.nn.Module):
    """A Llama layer in BF16. Compiled, the parts around attention are, as torchtitan's blocks."""

    def __init__(self, machine, hidden, heads, kv_heads, inner, compiled=False):
        super().__init__()
        self.heads, self.kv_heads, self.d = heads, kv_heads, hidden // heads
        shapes = {"norm1": (hidden,), "qkv": ((heads + 2 * kv_heads) * self.d, hidden), "out": (hidden, hidden),
                  "norm2": (hidden,), "gate_up": (2 * inner, hidden), "down": (hidden, inner)}
        for name, shape in shapes.items():
            setattr(self, name, torch.nn.Parameter(machine.random(*shape, scale=0.02)))
        wrap = torch.compile if compiled else (lambda f: f)
        self.before, self.after = wrap(before_attention), wrap(after_attention)

    def forward(self, x, call):
        positions = torch.arange(x.shape[0], device=x.device)[:, None] if "angle" not in call else None
        if positions is not None:
            angle = positions * 1e4 ** (-torch.arange(0, self.d, 2, device=x.device) / self.d)
            call["angle"] = (angle.cos(), angle.sin())
        q, k, v = self.before(x, self.norm1, self.qkv, *call["angle"], self.heads, self.kv_heads)
        return self.after(x, attend(q, k, v, call), self.out, self.norm2, self.gate_up, self.down)


def layers(machine, lengths):
    """Two layers of llama3.1-8b, forward and backward, over windows of packed documents."""
    shape = dict(hidden=64, heads=2, kv_heads=1, inner=96) if machine.tiny else dict(hidden=4096, heads=32, kv_heads=8, inner=14336)
    rows = []
    for compiled in (False,) if machine.tiny else (True, False):
        stack = [Layer(machine, **shape, compiled=compiled) for _ in range(2)]
        for tokens in (64,) if machine.tiny else (16384, 32768) if compiled else (16384, 4096):
            windows = [[tokens], [tokens // 4] * 4, [tokens // 32] * 32] + [window(lengths, tokens, s) for s in range(5)]
            gradient = machine.random(tokens, shape["hidden"])
            for documents in windows:
                call = packed_call(documents, machine)
                x = machine.random(tokens, shape["hidden"]).requires_grad_()
                marks = []

                def step():
                    for layer in stack:
                        layer.zero_grad(set_to_none=True)
                    events = [machine_event(machine) for _ in range(3)]
                    events[0]()
                    y = x
                    for layer in stack:
                        y = layer(y, call)
                    events[1]()
                    y.backward(gradient)
                    events[2]()
                    marks.append(events)

                for _ in range(3 if machine.tiny else 9):
                    step()
                machine.finish()
                times = sorted((b.at - a.at, c.at - b.at) for a, b, c in marks[2:]) if machine.tiny else \
                    sorted((a.event.elapsed_time(b.event) * 1e-3, b.event.elapsed_time(c.event) * 1e-3) for a, b, c in marks[2:])
                forward, backward = (statistics.median(t[i] for t in times) for i in (0, 1))
                both = sorted(sum(t) for t in times)
                rows.append({"compiled": compiled, "layers": 2, "documents": documents, "forward": forward,
                             "backward": backward, "seconds": statistics.median(both),
                             "spread": (both[-2] - both[1]) / statistics.median(both) if len(both) > 2 else 0.0})
    return {"layers": rows}


class machine_event:  # a point in time of the GPU's queue, or of the CPU's clock
    def __init__(self, machine):
        self.event = None if machine.tiny else torch.cuda.Event(enable_timing=True)
        self.at = 0.0

    def __call__(self):
        if self.event is None:
            self.at = time.perf_counter()
        else:
            self.event.record()


PARTS = {"host": host, "attention": attention, "grouped": grouped, "fp8": fp8, "layers": layers, "power": power}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--lengths")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch._dynamo.config.automatic_dynamic_shapes = False  # one program per number of tokens, as in training
    machine = Machine(options.tiny)
    lengths = [64, 300, 1200, 7000]
    if options.lengths:
        with open(options.lengths, encoding="utf-8") as file:
            lengths = [int(line) for line in file if line.strip().isdigit()]
    result = {"schema": "equipoise.samples/1", "date": time.strftime("%Y-%m-%d"), "samples": {},
              "device": {"name": "cpu" if options.tiny else torch.cuda.get_device_name()},
              "software": {"PyTorch": torch.__version__}, "failed": {}}
    for name in options.parts.split(","):
        begin = time.perf_counter()
        try:
            found = PARTS[name](machine, lengths)
            for table, rows in found.pop("samples", {}).items():
                result["samples"].setdefault(table, []).extend(rows)
            result.update(found)
        except Exception as error:  # a failed part must not end the others
            traceback.print_exc()
            result["failed"][name] = f"{type(error).__name__}: {error}"[:500]
        print(f"{name}: {time.perf_counter() - begin:.1f} s", flush=True)
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file)
        if not options.tiny:
            torch.cuda.empty_cache()
    sys.exit(1 if result["failed"] else 0)


if __name__ == "__main__":
    main()
