#!/usr/bin/env python3
"""torchtitan_on_cpu.py CONFIG SAVE OPTIONS...: torchtitan's trainer with the example's loader, a tiny Llama 3 and what `export` prints.

torchtitan asks for an accelerator: the functions of torch.cuda that torch.cpu lacks, all about a device's name and memory, are
replaced. Its attentions that mask documents need one, too, so one of PyTorch takes their place. All else is torchtitan's own.
SAVE gets the gradients of the first step and the weights at the end."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import torch
import torch._utils

torch._utils._get_available_device_type = lambda: "cpu"
memory = SimpleNamespace(total_memory=1 << 30)
for name, value in {"get_device_name": "cpu", "get_device_properties": memory, "current_device": 0, "memory_stats": {}, "reset_peak_memory_stats": None, "empty_cache": None}.items():
    setattr(torch.cpu, name, lambda *_, value=value: value)

from torchtitan import train  # noqa: E402
from torchtitan.config import ConfigManager  # noqa: E402
from torchtitan.models.llama3 import Transformer, TransformerModelArgs  # noqa: E402
from torchtitan.protocols import train_spec  # noqa: E402

import tiny  # noqa: E402
import torchtitan_job  # noqa: E402, F401, as --experimental.custom_import does


class ByDocument(torch.nn.Module):
    mask = None

    def forward(self, q, k, v, **_):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=ByDocument.mask)


class Model(Transformer):
    def __init__(self, args):
        super().__init__(args)
        for layer in self.layers.values():
            layer.attention.inner_attention = ByDocument()

    def forward(self, tokens, attention_masks=None, positions=None):
        document = (positions[0] == 0).cumsum(0)
        ByDocument.mask = torch.tril(document[:, None] == document[None])
        return super().forward(tokens, positions=positions)


def loss_of(model, tokens):
    logits = model(tokens, positions=torch.arange(tokens.shape[1])[None])
    return torch.nn.functional.cross_entropy(logits[0, :-1].float(), tokens[0, 1:], reduction="sum")


def main():
    config, save, *options = sys.argv[1:]
    args = TransformerModelArgs(dim=32, n_layers=2, n_heads=2, vocab_size=tiny.WORDS + 2, multiple_of=32)
    spec = train_spec.get_train_spec("llama3_packed")
    train_spec.register_train_spec("tiny", replace(
        spec, model_cls=Model, model_args={"tiny": args}, build_tokenizer_fn=None, build_validator_fn=None, parallelize_fn=lambda model, *_: model))
    trainer = train.Trainer(ConfigManager().parse_args([
        "--job.config_file", config, "--model.name", "tiny", "--model.flavor", "tiny", "--optimizer.implementation", "for-loop",
        "--training.mixed_precision_param", "float32", "--training.max_norm", "1e9", *options]))
    (model,), gradients = trainer.model_parts, {}
    start, data = [p.detach().clone() for p in model.parameters()], tiny.documents()
    own = trainer.optimizers.step

    def step(*arguments, **keys):
        gradients.update((name, p.grad.clone()) for name, p in model.named_parameters() if name not in gradients)
        own(*arguments, **keys)

    trainer.optimizers.step = step
    trainer.train()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), start):
            parameter.copy_(value)
    tiny.alone(model, data, [tiny.sampler(data)], loss_of, steps=1)  # from the same weights: its gradients are left
    torch.save({"gradients": gradients, "alone": {name: p.grad for name, p in model.named_parameters()}, "weights": weights,
                "place": trainer.dataloader.state_dict()}, save)


if __name__ == "__main__":
    main()
