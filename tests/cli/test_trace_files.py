"""Timelines and Chakra traces of a 64-GPU run at op fidelity, read back from the files.

Every byte is decoded by the protobuf wire format alone. Where the Python package `perfetto` is installed, its own
generated parser reads the timeline as well; the test says when it is not.
"""

import collections
import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "sim/python"))

from papers.perfetto import fields, varint  # noqa: E402

PROGRAM = os.environ.get("EQUIPOISE", "build/release/bin/equipoise")
STEPS = 10

STUDY = {
    "name": "64 GPUs",
    "trace": {"distribution": "wlb-128k", "seed": 3},
    "model": "wlb-550m",
    "parallel": {"tensor": 2, "context": 2, "pipeline": 4, "data": 4, "recompute": "none"},
    "batch": {"context_window": "16K", "sequences_per_step": 8, "steps": STEPS},
    "policies": ["plain"],
    "baseline": "plain",
}
GPUS, STAGES, LANES, CONTEXT, TENSOR = 64, 4, 4, 2, 2


class TraceFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.temporary.name)
        (folder / "study.json").write_text(json.dumps(STUDY))
        cls.out = folder / "out"
        subprocess.run(
            [PROGRAM, "study", folder / "study.json", "--fidelity", "op", "--out", cls.out, "--timeline-steps", str(STEPS)]
            + ["--timeline-counters", "none", "--timeline-lanes", "all", "--timeline-stages", "all", "--chakra"],
            check=True, capture_output=True, timeout=300,
        )
        cls.trace = (cls.out / "timeline" / "plain.pftrace").read_bytes()

    def test_chakra_is_refused_where_stages_exchange_attention(self):
        folder = pathlib.Path(self.temporary.name)
        study = STUDY | {"policies": ["slimpipe"], "parallel": {"tensor": 2, "pipeline": 2}}
        (folder / "exchange.json").write_text(json.dumps({k: v for k, v in study.items() if k != "baseline"}))
        command = [PROGRAM, "study", folder / "exchange.json", "--fidelity", "op", "--out", folder / "none", "--chakra"]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("slimpipe.stage_attention_exchange: expected false with --chakra, found true", refused.stderr)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def test_one_track_per_rank_and_stream_with_nested_slices(self):
        tracks, names, annotations = {}, {}, {}
        depth, last, slices = collections.Counter(), collections.Counter(), collections.Counter()
        deepest, arguments = collections.Counter(), collections.defaultdict(set)
        for number, packet in fields(self.trace):
            self.assertEqual(number, 1)
            packet = dict(fields(packet))
            if 60 in packet:
                track = dict(fields(packet[60]))
                tracks[track[1]] = (tracks[track[5]] + "/" if 5 in track else "") + track[2].decode()
            for kind, entry in fields(packet.get(12, b"")):
                entry = dict(fields(entry))
                {2: names, 3: annotations}[kind][entry[1]] = entry[2].decode()
            if 11 not in packet:
                continue
            event = fields(packet[11])
            values = dict(event)
            track, kind = values[11], values[9]
            self.assertGreaterEqual(packet[8], last[track], "events of a track go back in time")
            last[track] = packet[8]
            depth[track] += {1: 1, 2: -1}[kind]
            self.assertGreaterEqual(depth[track], 0)
            deepest[track] = max(deepest[track], depth[track])
            slices[track] += kind == 1
            if kind == 1:
                for argument in (value for number, value in event if number == 4):
                    arguments[names[values[10]]].add(annotations[dict(fields(argument))[1]])
        self.assertFalse(any(depth.values()), "a slice was never closed")
        compute = [t for t, name in tracks.items() if name.endswith("/compute")]
        self.assertEqual(len(compute), GPUS // TENSOR)  # TP ranks do the same: one of them is shown
        for t in compute:
            self.assertEqual(deepest[t], 2)  # kernels inside the ops of the schedule
            parent = tracks[t].rsplit("/", 1)[0]
            self.assertTrue({parent + "/tp", parent + "/cp"} <= set(tracks.values()))
        self.assertGreater(sum(slices.values()), 10000)
        # What an op worked on.
        self.assertLessEqual({"tokens", "documents", "flops"}, arguments["attention"])
        self.assertLessEqual({"tokens", "flops", "bytes"}, arguments["qkv_gemm"])
        self.assertLessEqual({"tokens", "documents", "bytes"}, arguments["cp_all_gather"])
        self.assertLessEqual({"tokens", "bytes"}, arguments["tp_all_gather"])

    def test_perfettos_own_parser_reads_it(self):
        try:
            from perfetto.protos.perfetto.trace import perfetto_trace_pb2
        except ImportError:
            self.skipTest("the Python package perfetto is not installed")
        trace = perfetto_trace_pb2.Trace()
        self.assertEqual(trace.ParseFromString(self.trace), len(self.trace))
        self.assertEqual(len(trace.packet), len(fields(self.trace)))
        begun = sum(p.track_event.type == perfetto_trace_pb2.TrackEvent.TYPE_SLICE_BEGIN for p in trace.packet)
        ended = sum(p.track_event.type == perfetto_trace_pb2.TrackEvent.TYPE_SLICE_END for p in trace.packet)
        self.assertEqual(begun, ended)
        named = {p.track_descriptor.name for p in trace.packet if p.HasField("track_descriptor")}
        self.assertLessEqual({"compute", "tp", "cp", "lane 3", "stage 3", "cp 1"}, named)

    def test_chakra_traces_match_each_other(self):
        folder = self.out / "chakra" / "plain"
        groups = json.loads((folder / "comm_groups.json").read_text())
        sent, received, collectives = collections.Counter(), collections.Counter(), collections.defaultdict(list)
        for gpu in range(GPUS):
            data, at, messages = (folder / f"step.{gpu}.et").read_bytes(), 0, []
            while at < len(data):
                length, at = varint(data, at)
                messages.append(data[at : at + length])
                at += length
            self.assertEqual(dict(fields(messages[0])), {1: b"0.0.4"})
            per_group = collections.defaultdict(list)
            for number, message in enumerate(messages[1:]):
                node = fields(message)
                values = dict(node)
                attributes = {dict(fields(v))[1].decode(): fields(v)[-1][1] for n, v in node if n == 10}
                self.assertEqual(values[1], number)
                for dependency in (v for n, v in node if n == 5):
                    self.assertLess(dependency, number)  # so there are no circles
                kind = values[3]
                self.assertIn(kind, (4, 5, 6, 7))
                if kind == 7:
                    members = groups[attributes["pg_name"].decode()]
                    self.assertIn(gpu, members)
                    self.assertGreater(attributes["comm_size"], 0)
                    self.assertIn(attributes["comm_type"], (0, 2, 6, 7))
                    per_group[attributes["pg_name"]].append((values[2], attributes["comm_type"]))
                elif kind in (5, 6):
                    ends = attributes["comm_src"], attributes["comm_dst"]
                    self.assertEqual(ends[kind == 6], gpu)
                    (sent if kind == 5 else received)[ends + (attributes["comm_tag"], attributes["comm_size"])] += 1
            for group, ops in per_group.items():
                collectives[group].append(ops)
        self.assertEqual(sent, received)
        self.assertEqual(set(sent.values()), {1})
        # Forward and backward of each micro-batch cross three borders of stages on every rank of a stage.
        micro_batches = STUDY["batch"]["sequences_per_step"] // LANES
        self.assertEqual(sum(sent.values()), 2 * (STAGES - 1) * micro_batches * GPUS // STAGES)
        for group, lists in collectives.items():
            self.assertEqual(len(lists), len(groups[group.decode()]), "a member makes none of the group's collectives")
            self.assertTrue(all(ops == lists[0] for ops in lists), "members disagree about a group's collectives")

    def test_gpus_csv_maps_every_gpu(self):
        with open(self.out / "gpus.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([int(row["gpu"]) for row in rows], list(range(GPUS)))
        places = {tuple(int(row[axis]) for axis in ("dp", "pp", "cp", "tp")) for row in rows}
        self.assertEqual(len(places), GPUS)
        self.assertEqual({int(row["node"]) for row in rows}, set(range(GPUS // 8)))
        relative = [float(row["relative_to_mean"]) for row in rows]
        self.assertAlmostEqual(sum(relative) / GPUS, 1, places=9)
        self.assertGreater(max(relative), 1.01)


if __name__ == "__main__":
    unittest.main()
