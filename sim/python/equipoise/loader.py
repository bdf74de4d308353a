"""A plan's micro-batches as the DataLoader of a training framework. Needs PyTorch."""

from functools import partial
from itertools import islice
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch.utils.data import DataLoader

from ._values import refuse
from .packed import IGNORED, PackedDataset, collate
from .sampler import BatchSampler, after


def megatron(batch: Dict[str, Any]) -> Dict[str, Any]:
    """A batch by the names of Megatron-LM's forward_step. loss_mask (float32) is 1 where a token has a loss."""
    labels = batch["labels"]
    renamed = {"tokens": batch["input_ids"], "labels": labels.clamp(min=0), "loss_mask": (labels != IGNORED).float()}
    return {**renamed, **{key: batch[key] for key in ("position_ids", "cu_seqlens", "max_seqlen")}}


def torchtitan(batch: Dict[str, Any]) -> Tuple[Dict[str, Any], Any]:
    """A batch as torchtitan's trainer takes it: what its models are called with, and labels."""
    return {"input": batch["input_ids"], "positions": batch["position_ids"]}, batch["labels"]


def _packed(form: Optional[Callable], keys: Dict[str, Any], documents: List[Any]) -> Any:
    batch = collate(documents, **keys)
    return batch if form is None else form(batch)


def _collated(collate_fn: Callable, spare: Any, documents: List[Any]) -> Any:
    """What a framework's collate_fn makes, which needs a document: a micro-batch without any is the spare one without a loss."""
    batch = collate_fn(documents or [spare])
    if not documents:
        batch["labels"] = torch.full_like(batch["labels"], IGNORED)
    return batch


class Loader(DataLoader):
    """The micro-batches of a BatchSampler, as a DataLoader that knows which of them were handed out.

        sampler = equipoise.BatchSampler(lengths, "wlb", lanes=replicas, lane=replica, documents_per_step=256, accumulate=4)
        loader = equipoise.loader.Loader(dataset, sampler, num_workers=4)

    A batch is what equipoise.packed.collate makes with `length`, `pad` and the sampler's `multiple`, changed by a `form` such as `megatron`
    or `torchtitan` above. A framework's own `collate_fn` takes the place of all these, and is given whole items of the dataset. An
    iteration is the rest of an epoch, as the sampler's; if it is `endless`, of all epochs. `options` are those of DataLoader.

    Worker processes ask the sampler for micro-batches ahead. These do not count in `state_dict`, which belongs to the
    batch that was handed out last.
    """

    # accelerate then leaves the batches as they are, where it would deal them to its ranks again, and saves this loader's state.
    _is_accelerate_prepared = use_stateful_dataloader = True

    def __init__(
        self,
        dataset: Any,
        sampler: BatchSampler,
        *,
        field: str = "input_ids",
        form: Optional[Callable] = None,
        length: Optional[int] = None,
        pad: int = 0,
        collate_fn: Optional[Callable] = None,
        endless: bool = False,
        **options: Any,
    ):
        make: Callable
        if collate_fn is None:
            dataset = PackedDataset(dataset, field)
            make = partial(_packed, form, {"multiple": sampler.multiple, "length": length, "pad": pad})
        else:
            given = {"field": field != "input_ids", "form": form is not None, "length": length is not None, "pad": pad != 0,
                     "multiple": sampler.multiple > 1, "slices": sampler.slices}
            if any(given.values()):
                refuse("collate_fn", f"none with {', '.join(key for key in given if given[key])}, which this loader's own batches have", collate_fn)
            make = partial(_collated, collate_fn, dataset[int(sampler.lengths.argmin())])
        super().__init__(dataset, batch_sampler=sampler, collate_fn=make, **options)
        self.micro_batches, self.endless = sampler, endless
        self.place = sampler.place

    def _steps(self) -> Iterator[Iterator[Any]]:
        """The steps that are left of the epoch, from the batch that comes next here, whatever workers have asked ahead."""
        epoch, first, done = self.micro_batches.place = self.place
        counts = self.micro_batches._planned(epoch)[2]
        batches = super().__iter__()
        for step in range(first, len(counts)):
            yield self._of_step(batches, epoch, step, done if step == first else 0, counts)
        next(batches, None)  # workers end with their iterator

    def _of_step(self, batches: Iterator[Any], epoch: int, step: int, done: int, counts: List[int]) -> Iterator[Any]:
        self.place = after(epoch, step, done, counts)  # passes a step that has no micro-batch of this lane
        for batch in islice(batches, counts[step] - done):
            done += 1
            self.place = after(epoch, step, done, counts)
            yield batch

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for step in self._all_steps():
            yield from step

    def steps(self) -> Iterator[List[Any]]:
        """What an iteration gives, as one list of batches for each optimizer step."""
        return map(list, self._all_steps())

    def _all_steps(self) -> Iterator[Iterator[Any]]:
        yield from self._steps()
        while self.endless:
            yield from self._steps()

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch, unless it is in that epoch already."""
        if epoch != self.place[0]:
            self.micro_batches.set_epoch(epoch)
            self.place = (epoch, 0, 0)

    def state_dict(self) -> Dict[str, Any]:
        """Where the run is: the sampler's state after the batches that were handed out."""
        return self.micro_batches.state_at(self.place)

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes to where `state_dict` was taken. Raises ValueError as the sampler's does."""
        self.micro_batches.load_state_dict(state)
        self.place = self.micro_batches.place
