"""What the frameworks' examples train: a model of two small layers on random documents of very different lengths. It also has the same
training by plain PyTorch, one document at a time, with which the tests compare their weights."""

import argparse

import numpy as np
import torch

import equipoise

WORDS = 64
STEPS, MICRO_BATCHES = 3, 3  # optimizer steps of an epoch, and micro-batches of a rank in each
RATE = 0.5  # of SGD


def arguments(text):
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="wlb", help="see `equipoise list policies`")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--workers", type=int, default=2, help="processes that load")
    parser.add_argument("--state", default="", help="folder of the run's state: written after the last step, and resumed from if it is there")
    parser.add_argument("--save", default="", help="file for the weights at the end")
    return parser


def documents(count=20 * STEPS):
    random = np.random.RandomState(0)
    lengths = np.clip(equipoise.draw_trace("wlb-128k", count, 0) // 1024, 4, 96)
    return [{"input_ids": random.randint(0, WORDS, size=int(n)).tolist()} for n in lengths]


def sampler(data, policy="wlb", lanes=1, lane=0, **options):
    """Steps of 20 documents. Packs of ffd are fewer than the micro-batches that a framework counts."""
    own = {"wlb": {"queues": 1, "max_tokens": 256}, "ffd": {"pack_length": 96}}.get(policy, {})
    lengths = [len(d["input_ids"]) for d in data]
    return equipoise.BatchSampler(
        lengths, policy, lanes=lanes, lane=lane, accumulate=MICRO_BATCHES, documents_per_step=20, context_window=128, **own,
        **options)


def model():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(
        vocab_size=WORDS + 2, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2))


def loss_sum(model, batch):
    """Of all labels of a micro-batch. Transformers keeps documents apart where position_ids begin again."""
    logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[0].float(), batch["labels"][0], ignore_index=equipoise.packed.IGNORED, reduction="sum")


def labels_of(step):
    """How many labels the micro-batches of a step have on this rank."""
    return sum((batch["labels"] != equipoise.packed.IGNORED).sum() for batch in step)


def alone(model, data, samplers, loss, steps=STEPS):
    """Trains on each document alone, in the steps of the samplers of all lanes, which are at the beginning of an epoch.
    loss(model, tokens): the sum over a document's labels."""
    epoch = list(zip(*(one.steps() for one in samplers)))
    for number in range(steps):
        found = [data[d]["input_ids"] for lane in epoch[number % len(epoch)] for m in lane.micro_batches for d in m]
        model.zero_grad()
        for tokens in found:
            (loss(model, torch.tensor([tokens])) / sum(len(d) - 1 for d in found)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= RATE * parameter.grad
    return model
