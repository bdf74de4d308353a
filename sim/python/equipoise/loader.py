"""A plan's micro-batches as the DataLoader of a training framework. Needs PyTorch."""

from functools import partial
from itertools import islice
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch.utils.data import DataLoader

from ._values import refuse
from .packed import IGNORED, PackedDataset, collate
from .sampler import BatchSampler


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
        self._find_place()

    def _find_place(self) -> None:
        sampler = self.micro_batches
        self._epoch, self._consumed = sampler.epoch, len(sampler) - sum(sampler.rest())

    def _rest(self) -> Iterator[Any]:
        """The rest of the epoch, in which nothing that workers have asked ahead is left out."""
        self.load_state_dict(self.state_dict())
        for batch in super().__iter__():
            self._consumed += 1
            yield batch
        self._epoch, self._consumed = self._epoch + 1, 0  # also past a last step that has no micro-batch of this lane

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        yield from self._rest()
        while self.endless:
            yield from self._rest()

    def steps(self) -> Iterator[List[Any]]:
        """What an iteration gives, as one list of batches for each optimizer step."""
        while True:
            self.load_state_dict(self.state_dict())
            counts, batches = self.micro_batches.rest(), self._rest()
            for left, count in zip(reversed(range(len(counts))), counts):
                step = list(islice(batches, count))
                if left == 0:
                    next(batches, None)  # ends the epoch
                yield step
            if not self.endless:
                return

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch, unless it is in that epoch already."""
        if epoch != self.state_dict()["epoch"]:
            self.micro_batches.set_epoch(epoch)
            self._find_place()

    def state_dict(self) -> Dict[str, Any]:
        """Where the run is: the sampler's state after the batches that were handed out."""
        return self.micro_batches.state_dict(self._consumed, self._epoch)

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes to where `state_dict` was taken. Raises ValueError as the sampler's does."""
        self.micro_batches.load_state_dict(state)
        self._find_place()
