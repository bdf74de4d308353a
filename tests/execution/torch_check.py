#!/usr/bin/env python3
"""Checks what `equipoise execute --dump DIR` wrote with PyTorch's autograd: loss and all gradients of every plan.

    torch_check.py DIR [--limit 1e-4]

The model is a LLaMA in plain torch operations and float64; nothing of it is ours. Of plan.json's first step every
slice runs alone and unpacked, its positions from 0; the dependent chunks of one group run as the one slice that they
were cut from. The loss is the mean over all tokens of the step (targets of -100 have none). Compared are the loss
(relative) and each tensor's gradient (relative Frobenius error). Exit status: 0 all within the limit, 1 not, 2 the
folder is not such a dump, 77 torch is missing (skipped)."""
import argparse
import json
import math
import pathlib
import sys

try:
    import numpy
    import torch
    from torch.utils.checkpoint import checkpoint
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

# Layers, blocks of queries and blocks of logits are computed again for the backward pass, so that a document of 16K
# tokens fits into memory.
QUERY_BLOCK = 256
LOGIT_BLOCK = 512
NO_LOSS = -100


def rms_norm(x, weight, epsilon):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def rotated(x, base):
    """x: (tokens, heads, head_dim). Pairs (i, i + head_dim / 2) turn by position * base^(-2i / head_dim)."""
    tokens, _, size = x.shape
    frequency = base ** (-torch.arange(0, size, 2, dtype=x.dtype) / size)
    angle = torch.outer(torch.arange(tokens, dtype=x.dtype), frequency)[:, None, :]
    low, high = x[..., : size // 2], x[..., size // 2 :]
    return torch.cat((low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()), -1)


def attention_block(q, k, v, first):
    """Queries first .. of a sequence against keys 0 .. of it; (heads, tokens, head_dim) each."""
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    position = torch.arange(first, first + q.shape[1])[:, None]
    hidden = torch.arange(k.shape[1])[None, :] > position
    return torch.softmax(scores.masked_fill(hidden, -math.inf), -1) @ v


def attention(q, k, v):
    sharing = q.shape[1] // k.shape[1]
    q = q.transpose(0, 1)
    k = k.transpose(0, 1).repeat_interleave(sharing, 0)
    v = v.transpose(0, 1).repeat_interleave(sharing, 0)
    blocks = []
    for first in range(0, q.shape[1], QUERY_BLOCK):
        last = min(first + QUERY_BLOCK, q.shape[1])
        blocks.append(checkpoint(attention_block, q[:, first:last], k[:, :last], v[:, :last], first))
    return torch.cat(blocks, 1).transpose(0, 1)


def layer(x, weights, prefix, config):
    def weight(name):
        return weights[f"{prefix}.{name}.weight"]

    epsilon, size = config["rms_norm_eps"], config["head_dim"]
    normed = rms_norm(x, weight("input_layernorm"), epsilon)
    q, k, v = ((normed @ weight(f"self_attn.{n}_proj").T).unflatten(1, (-1, size)) for n in "qkv")
    mixed = attention(rotated(q, config["rope_theta"]), rotated(k, config["rope_theta"]), v)
    x = x + mixed.flatten(1) @ weight("self_attn.o_proj").T
    normed = rms_norm(x, weight("post_attention_layernorm"), epsilon)
    gate, up = (normed @ weight(f"mlp.{n}_proj").T for n in ("gate", "up"))
    return x + (torch.nn.functional.silu(gate) * up) @ weight("mlp.down_proj").T


def head_loss(x, head, targets):
    return torch.nn.functional.cross_entropy(x @ head.T, targets, ignore_index=NO_LOSS, reduction="sum")


def loss_sum(weights, config, tokens, targets):
    x = weights["model.embed_tokens.weight"][tokens]
    for number in range(config["num_hidden_layers"]):
        x = checkpoint(layer, x, weights, f"model.layers.{number}", config)
    x = rms_norm(x, weights["model.norm.weight"], config["rms_norm_eps"])
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    blocks = zip(x.split(LOGIT_BLOCK), targets.split(LOGIT_BLOCK))
    return sum(checkpoint(head_loss, part, weights[head], wanted) for part, wanted in blocks)


def sequences(step):
    """(document, begin, end) of everything that attends to itself alone."""
    found = []
    for lane in step["lanes"]:
        following = 0  # chunks of the group under way that are still to come
        for micro_batch in lane["micro_batches"]:
            count = micro_batch.get("chunk", {}).get("count", 1)
            if following:
                ((document, begin, end),) = micro_batch["slices"]
                if [document, begin] != [found[-1][0], found[-1][2]]:
                    raise ValueError(f"chunk {micro_batch['slices']} does not follow {found[-1]}")
                found[-1] = (document, found[-1][1], end)
                following -= 1
                continue
            found += [tuple(piece) for piece in micro_batch["slices"]]
            following = count - 1
        if following:
            raise ValueError(f"lane {lane['lane']}: the last chunk group is not whole")
    return found


def load(path):
    return torch.from_numpy(numpy.load(path))


def load_tensors(folder):
    return {path.name[: -len(".npy")]: load(path).to(torch.float64) for path in sorted(folder.glob("*.npy"))}


def names_of(config):
    parts = [f"self_attn.{n}_proj" for n in "qkvo"] + [f"mlp.{n}_proj" for n in ("gate", "up", "down")]
    parts += ["input_layernorm", "post_attention_layernorm"]
    names = [f"model.layers.{n}.{part}.weight" for n in range(config["num_hidden_layers"]) for part in parts]
    names += ["model.embed_tokens.weight", "model.norm.weight"]
    return set(names if config["tie_word_embeddings"] else names + ["lm_head.weight"])


def expected(root, label, config):
    """Loss (token mean), its tokens, and the gradients by name."""
    weights = {name: value.requires_grad_() for name, value in load_tensors(root / label / "weights").items()}
    if set(weights) != names_of(config):
        raise ValueError(f"{label}/weights: not the model's tensors: {sorted(set(weights) ^ names_of(config))}")
    step = json.loads((root / label / "plan.json").read_text())["steps"][0]
    pieces = []
    for document, begin, end in sequences(step):
        tokens, targets = load(root / f"tokens/{document}.npy"), load(root / f"targets/{document}.npy")
        if not 0 <= begin < end <= len(tokens) or len(tokens) != len(targets):
            raise ValueError(f"{label}/plan.json: [{begin}, {end}) is not in document {document}")
        pieces.append((tokens[begin:end], targets[begin:end]))
    count = sum(int((targets != NO_LOSS).sum()) for _, targets in pieces)
    total = 0.0
    for tokens, targets in pieces:
        loss = loss_sum(weights, config, tokens, targets)
        (loss / count).backward()
        total += loss.item()
    return total / count, count, {name: value.grad for name, value in weights.items()}


def error_of(got, wanted):
    if got.shape != wanted.shape:
        return math.inf
    size = wanted.norm().item()
    distance = (got - wanted).norm().item()
    if not math.isfinite(distance):
        return math.inf
    return distance / size if size > 0 else distance


def check(root, label, config, limit):
    loss, count, gradients = expected(root, label, config)
    said = json.loads((root / label / "loss.json").read_text())
    rows = [("loss", abs(said["loss"] - loss) / abs(loss))]
    if said["tokens"] != count:
        rows.append((f"tokens: found {said['tokens']}, expected {count}", math.inf))
    got = load_tensors(root / label / "gradients")
    for name in sorted(set(got) | set(gradients)):
        missing = name not in got or name not in gradients
        rows.append((name, math.inf if missing else error_of(got[name], gradients[name])))
    print(f"{label}: loss {said['loss']:.9f}, PyTorch {loss:.9f}, {count} tokens")
    for name, error in rows:
        print(f"  {name:<55} {error:9.2e}  {'ok' if error <= limit else 'WRONG'}")
    return max(error for _, error in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--limit", type=float, default=1e-4, help="largest relative error (default 1e-4)")
    options = parser.parse_args()
    try:
        config = json.loads((options.folder / "config.json").read_text())
        labels = sorted(path.parent.name for path in options.folder.glob("*/plan.json"))
        if not labels:
            raise ValueError(f"{options.folder}: found no LABEL/plan.json")
        worst = {label: check(options.folder, label, config, options.limit) for label in labels}
    except (OSError, KeyError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for label, error in worst.items():
        print(f"{'ok   ' if error <= options.limit else 'WRONG'} {label}: worst error {error:.2e}")
    return 0 if all(error <= options.limit for error in worst.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
