"""What-ifs that can be computed by hand. Each test states a study and its answer, with the arithmetic next to it.

The device is made for it. One token of one layer takes 1 us forward (393,216 operations at 393.216 Gflop/s) and 2 us backward
(two products for each). Attention, links and all else take nothing unless a test prices them. A layer has 4 matrices: QKV 128 x 384, output 128 x 128, up 128 x 512 and down 512 x 128, together 196,608 weights,
so 2 x 196,608 = 393,216 operations a token, and two norms of 128.

A sequence has 1,000 tokens, and a stage one layer: f = 1 ms, b = 2 ms. The model has two words, so that embedding and head have
256 weights each; answers are compared within 0.2 %, which is what these and rounding may add.
"""

import json
import unittest

from support import Case

WITHIN = 0.002
MS = 1e-3
SLOW = {"GBps": 1}  # links of 1 GB/s: a byte takes a nanosecond
WEIGHTS = 196_608 + 2 * 128 + 2 * 256 + 128  # of one layer with its norms, embedding, head and the last norm
HIDDEN = 1000 * 128 * 2  # bytes of a sequence's hidden states: a hop between stages
NO_REDUCTION = {"reduce_gradients": False}


def constant(parameters):
    return {"provenance": {"kind": "measured", "source": "by hand"}, "parameters": parameters}


def ranges(*names):
    return {"ranges": {name: {"allowed": [0, 1e15], "samples": [0, 1e15]} for name in names}}


def product(gflops):
    zero = dict.fromkeys(("call_us", "left_ns", "right_ns", "product_ns", "left_far_ns", "right_far_ns", "product_far_ns"), 0)
    return {"gflops": gflops, **zero}


def attention(ns_a_pair):
    names = ("call_us", "pair_ns", "row_block_ns", "query_ns_per_128", "key_ns_per_128", "query_far_ns_per_128", "key_far_ns_per_128")
    parameters = {**dict.fromkeys(names, 0), "pair_ns_per_128": ns_a_pair, "cache_MB": 1e9}
    return {"form": "blocked-loops", **constant(parameters), **ranges("head_dim", "keys", "queries", "query_heads")}


def profile(pair_ns=1e-9, backward_pair_ns=1e-9, GBps=1e6, gpus_per_node=64, optimizer_GBps=1e12):
    collective = {**constant({"launch_us": 0, "rank_us": 0, "ramp_us": 0, "ramp_rank_us": 0, "ramp_MB": 1, "pair_loss": 0,
                              "bus_GBps": GBps, "switch_bus_GBps": 0, "switch_from_ranks": 0}), **ranges("bytes")}
    network = {**constant({"launch_us": 0, "step_us": 0, "pair_launch_us": 0, "ramp_us": 0, "reduce_ramp_us": 0, "ramp_MB": 1,
                           "efficiency": 1, "pair_efficiency": 1}), **ranges("bytes", "nodes")}
    row = {**constant({"launch_us": 0, "memory_GBps": 1e12}), **ranges("bytes")}
    rows = {name: row for name in ("attention_merge", "copy", "cross_entropy", "embedding", "residual_add", "rms_norm", "rope", "swiglu")}
    rows["optimizer"] = {**constant({"launch_us": 0, "memory_GBps": optimizer_GBps}), **ranges("bytes")}
    return {
        "schema": "equipoise.profile/1", "name": "by-hand", "summary": "constant costs",
        "device": {"name": "by hand", "memory_bytes": 1e12, "memory_GBps": 1e12, "peak_bf16_tflops": 0.393216, "peak_fp8_tflops": 0,
                   "sms": 1, "gpus_per_node": gpus_per_node, "nvlink_GBps": GBps, "nic_GBps": GBps, "launch_seconds": 0,
                   "seconds_per_launch": 0, "reserve_bytes": 0, "element_bytes": 2},
        "tables": {
            "attention": {"default": "hand", "kernels": {"hand": {"forward": attention(pair_ns), "backward": attention(backward_pair_ns)}}},
            "gemm": {"bf16": {"form": "packed-panels", **constant({
                "cache_MB": 1e9, **{role: product(393.216) for role in ("forward", "input_gradient", "weight_gradient")}}),
                **ranges("m", "n", "k")}},
            "elementwise": rows,
            "collective": {"default_network": "hand", "networks": {"hand": network},
                           "node": {kind: collective for kind in ("all_gather", "all_reduce", "all_to_all", "reduce_scatter", "send_recv")}},
        },
    }


class ByHand(Case):
    def study(self, *, layers=1, lengths=None, policy="plain", device=None, framework=None, **keys):
        """The study's only row. `lengths`: of the documents, each 1,000 tokens by default."""
        batch = {"context_window": 1000, "sequences_per_step": 1, "steps": 1, **keys.pop("batch", {})}
        trace = {"uniform": 1000}
        if lengths:
            trace = {"file": str(self.write("lengths.txt", "".join(f"{length}\n" for length in lengths)))}
        cluster = {"profile": str(self.write("hand.json", profile(**(device or {})))), **keys.pop("cluster", {})}
        study = {
            "trace": trace, "cluster": cluster, "batch": batch,
            "model": {"layers": layers, "hidden": 128, "heads": 2, "head_dim": 64, "ffn": 512, "vocab": 2, "gated_ffn": False},
            "framework": {"preset": "none", "tp_overlap": False, "overlap_grad_reduce": False, **(framework or {})},
            "policies": [policy], **keys,
        }
        result = json.loads(self.ok("study", self.write("study.json", study), "--format", "json", "--quiet"))
        row = result["policies"][0]
        self.assertEqual(row["status"], "ok", row.get("reason"))
        return row

    def near(self, found, by_hand):
        self.assertAlmostEqual(found, by_hand, delta=WITHIN * abs(by_hand) + 1e-12)

    def pipeline(self, stages, micro_batches, **keys):
        chunks = keys.pop("chunks", 1)
        parallel = {"pipeline": stages, "virtual_pipeline": chunks, "zero": 0, **keys.pop("parallel", {})}
        return self.study(layers=stages * chunks, parallel=parallel, batch={"sequences_per_step": micro_batches}, **keys)["metrics"]

    # ---- Pipelines: (m + P - 1)(f + b), where f + b = 3 ms of a layer

    def test_one_stage(self):
        self.near(self.pipeline(1, 1)["step_seconds"], 3 * MS)

    def test_one_stage_four_micro_batches(self):
        self.near(self.pipeline(1, 4)["step_seconds"], 4 * 3 * MS)

    def test_two_stages(self):
        self.near(self.pipeline(2, 4)["step_seconds"], (4 + 1) * 3 * MS)

    def test_four_stages(self):
        self.near(self.pipeline(4, 8)["step_seconds"], (8 + 3) * 3 * MS)

    def test_gpipe_takes_as_long_as_1f1b(self):
        self.near(self.pipeline(4, 8, schedule="gpipe")["step_seconds"], (8 + 3) * 3 * MS)

    def test_bubble_of_two_stages(self):
        self.near(self.pipeline(2, 4)["bubble_ratio"], 1 / 5)  # (P - 1) / (m + P - 1)

    def test_bubble_of_four_stages(self):
        self.near(self.pipeline(4, 8)["bubble_ratio"], 3 / 11)

    def test_one_stage_has_no_bubble(self):
        self.near(1 - self.pipeline(1, 4)["bubble_ratio"], 1)

    # Two chunks a stage: each micro-batch takes 2 x 3 ms there, and the bubble is (P - 1) / V of it.
    def test_interleaved_two_stages(self):
        self.near(self.pipeline(2, 4, chunks=2)["step_seconds"], (4 + 1 / 2) * 6 * MS)

    def test_interleaved_four_stages(self):
        self.near(self.pipeline(4, 8, chunks=2)["step_seconds"], (8 + 3 / 2) * 6 * MS)

    def test_interleaved_bubble(self):
        self.near(1 - self.pipeline(4, 8, chunks=2)["bubble_ratio"], 8 / 9.5)

    # A backward in halves of 1 ms each: f = b = w, and the bubble is (P - 1)(f + b - w) = (P - 1) x 1 ms.
    def test_zero_bubble_two_stages(self):
        self.near(self.pipeline(2, 4, schedule="zb-h1")["step_seconds"], (4 * 3 + 1) * MS)

    def test_zero_bubble_four_stages(self):
        self.near(self.pipeline(4, 8, schedule="zb-h1")["step_seconds"], (8 * 3 + 3) * MS)

    # Recompute in full: the backward begins with another forward, f + b = 1 + 3 ms.
    def test_recompute(self):
        self.near(self.pipeline(4, 8, parallel={"recompute": "full"})["step_seconds"], (8 + 3) * 4 * MS)

    def test_recompute_is_not_useful_time(self):
        # 8 x 3 ms of 11 x 4 ms are useful.
        self.near(self.pipeline(4, 8, parallel={"recompute": "full"})["bubble_ratio"], 1 - 24 / 44)

    def test_recompute_of_half_the_layers(self):
        row = self.study(layers=2, parallel={"zero": 0, "recompute": {"layers": 1}})  # 2 x 3 ms and one forward more
        self.near(row["metrics"]["step_seconds"], 7 * MS)

    # ---- Unequal micro-batches and chunks: the fixtures of state-aware 1F1B, where a unit is 1,000 tokens: 1 ms

    def chunks(self, chunk_size, keep, **policy):
        return self.study(
            layers=4, lengths=[1000, 1000, 2000, 4000], parallel={"pipeline": 4, "zero": 0},
            batch={"context_window": 8000, "documents_per_step": 4},
            policy={"name": "chunkflow", "chunk_size": chunk_size, "keep": keep, "schedule": "state-aware-1f1b", **policy})["metrics"]

    def test_chunks_of_two_keep_one(self):
        self.near(self.chunks(2000, 1)["step_seconds"], 52 * MS)

    def test_chunks_of_two_keep_one_strictly(self):
        self.near(self.chunks(2000, 1, strict_keep=True)["step_seconds"], 54 * MS)

    def test_chunks_of_two_keep_both(self):
        self.near(self.chunks(2000, 2)["step_seconds"], 46 * MS)

    def test_chunks_of_four(self):
        # {1, 1, 2} and {4} are two equal micro-batches of 4 units: (2 + 3) x 12.
        self.near(self.chunks(4000, 1)["step_seconds"], 60 * MS)

    def test_bubble_of_chunks(self):
        self.near(self.chunks(2000, 1)["bubble_ratio"], 1 - 24 / 52)  # 8 units of 3 ms on each stage

    def plan(self, lanes, **keys):
        """`lanes`: of each, its micro-batches; of each, its documents' lengths."""
        lengths, made = [], []
        for lane, micro_batches in enumerate(lanes):
            made.append({"lane": lane, "context": keys.get("parallel", {}).get("context", 1), "micro_batches": []})
            for documents in micro_batches:
                slices = []
                for length in documents:
                    slices.append([len(lengths), 0, length])
                    lengths.append(length)
                made[-1]["micro_batches"].append({"slices": slices, "tokens": sum(documents)})
        plan = {"schema": "equipoise.plan/1", "policy": "by hand", "steps": [{"step": 0, "lanes": made, "carried": [], "tail": False}]}
        policy = {"name": "plan", "file": str(self.write("plan.json", plan)), **keys.pop("policy", {})}
        batch = {"context_window": sum(lengths), "documents_per_step": len(lengths)}
        return self.study(lengths=lengths, policy=policy, batch=batch, **keys)["metrics"]

    def test_long_first(self):
        self.near(self.plan([[[4000], [2000], [1000], [1000]]], layers=4, parallel={"pipeline": 4, "zero": 0})["step_seconds"], 56 * MS)

    def test_long_first_in_another_order(self):
        self.near(self.plan([[[4000], [1000], [2000], [1000]]], layers=4, parallel={"pipeline": 4, "zero": 0})["step_seconds"], 56 * MS)

    def test_long_last(self):
        self.near(self.plan([[[1000], [1000], [2000], [4000]]], layers=4, parallel={"pipeline": 4, "zero": 0})["step_seconds"], 54 * MS)

    def test_lanes_wait_for_the_longer_one(self):
        # A lane has 3,000 tokens and the other 1,000: 3 x 3 ms.
        self.near(self.plan([[[3000]], [[1000]]], parallel={"data": 2, "zero": 0}, framework={"reduce_gradients": False})["step_seconds"], 9 * MS)

    # ---- Hops between stages

    def test_hops_of_one_micro_batch(self):
        # Through four stages and back, with three hops each way.
        self.near(self.pipeline(4, 1, device=SLOW)["step_seconds"], 4 * 3 * MS + 6 * HIDDEN * 1e-9)

    def test_hops_between_nodes(self):
        row = self.pipeline(2, 1, device={"GBps": 1, "gpus_per_node": 1}, cluster={"network": {"nic_GBps": 0.5}})
        self.near(row["step_seconds"], 2 * 3 * MS + 2 * HIDDEN / 0.5e9)

    # ---- Gradients and weights over data-parallel replicas, behind the last backward

    def replicas(self, count, zero, **framework):
        return self.study(device=SLOW, parallel={"data": count, "zero": zero}, batch={"sequences_per_step": count},
                          framework=framework)["metrics"]

    def test_all_reduce_of_two(self):
        # fp32 gradients, 2 (n - 1) / n = 1 of their bytes.
        self.near(self.replicas(2, 0)["step_seconds"], 3 * MS + WEIGHTS * 4e-9)

    def test_all_reduce_of_four(self):
        self.near(self.replicas(4, 0)["step_seconds"], 3 * MS + WEIGHTS * 4e-9 * 2 * 3 / 4)

    def test_all_reduce_in_bf16(self):
        self.near(self.replicas(2, 0, gradient_bytes=2)["step_seconds"], 3 * MS + WEIGHTS * 2e-9)

    def test_zero_1(self):
        # Half of the fp32 gradients are scattered, half of the bf16 weights gathered.
        self.near(self.replicas(2, 1)["step_seconds"], 3 * MS + WEIGHTS * (4 + 2) / 2 * 1e-9)

    def test_zero_1_of_four(self):
        self.near(self.replicas(4, 1)["step_seconds"], 3 * MS + WEIGHTS * (4 + 2) * 3 / 4 * 1e-9)

    def test_no_reduction(self):
        self.near(self.replicas(2, 0, reduce_gradients=False)["step_seconds"], 3 * MS)

    # ---- Context parallelism of two ranks: each has 500 tokens, and half of the work

    def context(self, form, **framework):
        return self.study(device=SLOW, parallel={"context": 2, "context_comm": form, "zero": 0},
                          framework={**NO_REDUCTION, **framework})["metrics"]

    def test_gather_of_keys_and_values(self):
        # K and V of 1,000 tokens are 2 x 0.256 MB, of which half arrives: forward, again in the backward, and their gradients.
        self.near(self.context("all-gather")["step_seconds"], 1.5 * MS + 3 * HIDDEN * 1e-9)

    def test_gathered_keys_and_values_that_stay(self):
        self.near(self.context("all-gather", keep_gathered_kv=True)["step_seconds"], 1.5 * MS + 2 * HIDDEN * 1e-9)

    # ---- Tensor parallelism of two ranks: another layer adds half its work and its collectives

    def test_a_layer_of_tensor_parallelism(self):
        # A collective of half the hidden states takes 0.128 ms. Forward: 2 gathers and 2 scatters. Backward: the gathers in front of
        # output and down are bare; a gather of QKV's and up's input runs under the product for its gradient, and the scatter of that
        # under the weights' product. QKV's products of 1,000 x 49,152 / 393.216e9 = 0.125 ms leave 0.003 ms of each.
        one, two = (self.study(layers=layers, device=SLOW, parallel={"tensor": 2, "zero": 0})["metrics"]["step_seconds"] for layers in (1, 2))
        self.near(two - one, (1.5 + 6 * 0.128 + 2 * 0.003) * MS)

    # ---- Attention: 1 ns a pair forward, 2 ns backward. The kernel takes 64 rows at a time and all keys up to the last of them, so
    # that a document of L tokens (a multiple of 64) has L (L + 64) / 2 pairs.

    def attention(self, *lengths, **keys):
        return self.plan([[list(lengths)]], device={"pair_ns": 1, "backward_pair_ns": 2}, parallel={"zero": 0, **keys.pop("parallel", {})},
                         framework=NO_REDUCTION, **keys)

    def test_attention_of_one_document(self):
        self.near(self.attention(1024)["step_seconds"], 3 * 1.024 * MS + 3e-9 * 557_056)

    def test_attention_of_two_documents(self):
        self.near(self.attention(512, 512)["step_seconds"], 3 * 1.024 * MS + 3e-9 * 2 * 147_456)

    def test_attention_of_unequal_documents(self):
        self.near(self.attention(768, 256)["step_seconds"], 3 * 1.024 * MS + 3e-9 * (319_488 + 40_960))

    def test_contiguous_ranks(self):
        # The second half of the tokens sees the first one, too: 512 x 512 + 147,456 pairs against 147,456.
        row = self.attention(1024, parallel={"context": 2}, policy={"shard": "contiguous"})
        self.near(row["cp_imbalance"], 409_600 / ((409_600 + 147_456) / 2))

    def test_zigzag_ranks(self):
        # Quarters have 40,960, 106,496, 172,032 and 237,568 pairs: the first with the last, the second with the third.
        self.near(self.attention(1024, parallel={"context": 2}, policy={"shard": "per-sequence"})["cp_imbalance"], 1)

    # ---- What CP sends and what of it is seen

    def test_keys_seen_of_zigzag(self):
        # Rank 0 sees both quarters of rank 1; rank 1 sees the first of rank 0 and never the last.
        self.near(self.attention(1000, parallel={"context": 2}, policy={"shard": "per-sequence"})["kv_useful_ratio"], 3 / 4)

    def test_keys_seen_of_contiguous(self):
        self.near(self.attention(1000, parallel={"context": 2}, policy={"shard": "contiguous"})["kv_useful_ratio"], 1 / 2)

    def test_keys_seen_of_two_documents(self):
        # Quarters 0 and 1 are one document, 2 and 3 the other: rank 0 needs 2, rank 1 needs 0.
        self.near(self.attention(500, 500, parallel={"context": 2}, policy={"shard": "per-sequence"})["kv_useful_ratio"], 1 / 2)

    def test_all_tokens_are_distributed(self):
        self.near(self.attention(1000, parallel={"context": 2})["cr"], 1)

    def test_no_token_is_distributed(self):
        self.assertEqual(self.attention(1000)["cr"], 0)

    # ---- Memory: 2 bytes a weight, 4 a gradient, 12 an optimizer's state

    def memory(self, layers=1, **parallel):
        replicas = parallel.get("data", 1) * parallel.get("pipeline", 1) * 4
        return self.study(layers=layers, parallel={"zero": 0, **parallel}, batch={"sequences_per_step": replicas})["memory"]

    def test_weights(self):
        self.near(self.memory()["parameters"], 2 * WEIGHTS)

    def test_gradients(self):
        self.near(self.memory()["gradients"], 4 * WEIGHTS)

    def test_optimizer(self):
        self.near(self.memory()["optimizer"], 12 * WEIGHTS)

    def test_optimizer_of_zero_1(self):
        self.near(self.memory(data=4, zero=1)["optimizer"], 12 * WEIGHTS / 4)

    def test_gradients_of_zero_1(self):
        self.near(self.memory(data=4, zero=1)["gradients"], 4 * WEIGHTS)

    def test_gradients_of_zero_2(self):
        self.near(self.memory(data=4, zero=2)["gradients"], 4 * WEIGHTS / 4)

    def test_weights_of_zero_3(self):
        self.near(self.memory(data=4, zero=3)["parameters"], 2 * WEIGHTS / 4)

    def test_weights_of_tensor_ranks(self):
        self.near(self.memory(tensor=2)["parameters"], 2 * (196_608 / 2 + 2 * 128 + 256 + 128))  # norms are whole

    def test_weights_of_the_first_stage(self):
        # It holds the most, as it has more micro-batches in flight: one layer and the embedding.
        self.near(self.memory(layers=2, pipeline=2)["parameters"], 2 * (196_608 + 2 * 128 + 256))

    def test_micro_batches_in_flight(self):
        # 1F1B keeps as many micro-batches as stages on the first one.
        self.near(self.memory(layers=4, pipeline=4)["activations"], 4 * self.memory()["activations"])

    # ---- Rates and what they cost

    def test_tokens_per_second(self):
        self.near(self.pipeline(2, 4)["tokens_per_second_per_gpu"], 4000 / (15 * MS) / 2)

    def test_mfu(self):
        # Attention runs as fast as products: 4 x 128 operations a pair at 393.216 Gflop/s. What is lost is what the kernel computes
        # above the 1,024 x 1,025 / 2 = 524,800 causal pairs.
        ns = 512 / 393.216
        row = self.plan([[[1024]]], device={"pair_ns": ns, "backward_pair_ns": 2 * ns}, parallel={"zero": 0})
        products = 393_216 * 1024
        self.near(row["mfu"], (products + 512 * 524_800) / (products + 512 * 557_056))

    def test_mfu_with_a_bubble(self):
        self.near(self.pipeline(2, 4)["mfu"] / self.pipeline(1, 4)["mfu"], 4 / 5)  # m / (m + P - 1)

    def test_gpu_hours(self):
        self.near(self.pipeline(1, 1)["gpu_hours_per_billion_tokens"], 1e9 * 3 * MS / 1000 / 3600)

    def test_dollars(self):
        self.near(self.pipeline(1, 1, cluster={"dollars_per_gpu_hour": 2})["dollars_per_billion_tokens"], 2 * 1e9 * 3 * MS / 1000 / 3600)

    # ---- Balance

    def lanes(self, *lanes):
        return self.plan(list(lanes), parallel={"data": len(lanes), "zero": 0}, framework=NO_REDUCTION)

    def test_abr_of_equal_tokens(self):
        row = self.lanes([[1000] * 4], [[2000, 2000]])  # squares: 4 and 8 million
        self.near(row["abr"], (8 - 4) / (8 * 2))
        self.assertEqual(row["dbr"], 0)

    def test_abr_of_one_document_against_four(self):
        self.near(self.lanes([[4000]], [[1000] * 4])["abr"], (16 - 4) / (16 * 2))

    def test_dbr(self):
        row = self.lanes([[2000]], [[1000]])
        self.near(row["abr"], (4 - 1) / (4 * 2))
        self.near(row["dbr"], (2 - 1) / (2 * 2))

    def test_mean_tokens_of_a_lane(self):
        self.near(self.lanes([[2000]], [[1000]])["ave_t"], 1500)

    def test_imbalance_of_latency(self):
        self.near(self.plan([[[3000], [1000]]], parallel={"zero": 0})["imbalance_degree"], 3 * 2 / (3 + 1))

    def test_imbalance_of_attention(self):
        self.near(self.plan([[[3000], [1000]]], parallel={"zero": 0})["attention_imbalance"], 9 * 2 / (9 + 1))

    def test_padding(self):
        # 1,000 and 500 tokens, both as long as the longer one.
        row = self.study(lengths=[1000, 500], policy="padded", parallel={"zero": 0},
                         batch={"documents_per_step": 2, "micro_batch_size": 2, "sequences_per_step": 2})
        self.near(row["metrics"]["pr"], 1 - 1500 / 2000)
        self.near(row["metrics"]["step_seconds"], 2 * 3 * MS)

    # ---- Delay

    def outliers(self):
        """Documents of 700 tokens and more wait until there are as many as micro-batches."""
        policy = {"name": "wlb", "thresholds": [700], "max_tokens": 2000}
        return self.study(lengths=[800, 200, 500, 500] * 2, policy=policy, parallel={"zero": 0},
                          batch={"sequences_per_step": 2, "steps": 2})["metrics"]

    def test_mean_delay(self):
        self.near(self.outliers()["token_delay_mean"], 800 / 4000)  # the first batch's outlier waits one step

    def test_longest_delay(self):
        self.assertEqual(self.outliers()["token_delay_max"], 1)

    def test_no_delay(self):
        self.assertEqual(self.pipeline(1, 4)["token_delay_mean"], 0)


if __name__ == "__main__":
    unittest.main()
