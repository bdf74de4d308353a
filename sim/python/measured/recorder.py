"""Records the steps of a training loop for `measured`: what each took and the lengths of its documents.

    recorder = StepRecorder("steps.jsonl", group=data_parallel_group)      # on every rank
    for step in range(steps):
        for batch in micro_batches:
            recorder.micro_batch(lengths_of(batch))                        # equipoise.lengths_of, or one's own
            ...
        optimizer.step()
        recorder.step_done()

PyTorch is asked for only where it runs already: to wait for the GPU, and to bring the lanes together on rank 0.
"""

import json
import sys
import time


class StepRecorder:
    def __init__(self, path, group=None):
        self.path, self.group = path, group
        self.lane = []
        self.begin = self._now()

    def micro_batch(self, lengths):
        """Notes the documents of this rank's next micro-batch, in the order in which they are packed."""
        self.lane.append([int(n) for n in lengths])

    def step_done(self):
        """Ends a step: every rank of the group calls it; rank 0 writes a line."""
        end = self._now()
        lanes, lane = [self.lane], self.lane
        torch = sys.modules.get("torch")
        if torch and torch.distributed.is_available() and torch.distributed.is_initialized():
            lanes = [None] * torch.distributed.get_world_size(self.group)
            torch.distributed.all_gather_object(lanes, lane, group=self.group)
            if torch.distributed.get_rank(self.group) != 0:
                lanes = []
        if lanes:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"seconds": end - self.begin, "lanes": lanes}) + "\n")
        self.lane, self.begin = [], self._now()

    @staticmethod
    def _now():
        torch = sys.modules.get("torch")
        if torch and torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()
