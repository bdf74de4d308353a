"""Finds the model that a job trains: a built-in one by its repository at Hugging Face, or a local config.json."""

import os
import re
from pathlib import Path
from typing import Any, Dict, Optional, Union

from .job import Job, of_tables

Model = Union[str, Dict[str, Any]]

# Suffixes of names that do not change a model's shape: how it was tuned, stored or dated.
_TAILS = re.compile(r"([-_.](instruct|chat|base|hf|it|bf16|fp8|bnb|4bit|8bit|unsloth|sft|dpo|beta|thinking|dynamic"
                    r"|full|qlora|checkpoints|gptq|awq|int4|2507|v?\d\.\d+\b(?=$)|v\d+|\d{4}))+$")


def plain_name(name: str) -> str:
    """Shortens a name: "NousResearch/Meta-Llama-3-8B-Instruct" is "llama-3-8b"."""
    short = name.rstrip("/").split("/")[-1].lower().replace("_", "-")
    return re.sub(r"^(meta|nvidia)-", "", _TAILS.sub("", short))


def known_model(name: str) -> Optional[Model]:
    """The built-in model or the shape for a repository's name; None for others."""
    names, plain = of_tables("names"), plain_name(name)
    for family, of in names["distilled"].items():
        if plain.startswith(family) and plain not in names["models"]:
            plain = of + plain[len(family):]
    return names["models"].get(plain, plain if plain in names["built_in"] else None)


def config_of(name: str, near: Path) -> Optional[str]:
    """The config.json of a model's folder, or of a repository in the cache of Hugging Face."""
    here = [folder / "config.json" for folder in (Path(name), near / name)]
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface") / "hub")
    try:
        cached = sorted(hub.glob("models--" + name.replace("/", "--") + "/snapshots/*/config.json")) if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else []
        return next((str(file.resolve()) for file in here + cached if file.is_file()), None)
    except (OSError, ValueError):
        return None


def model_of(job: Job, meaning: str = "model") -> Model:
    """The model that --model names, else the job's own setting."""
    own = job.get(meaning)
    name = job.options.model or own
    key = "--model" if job.options.model else job.name_of(meaning)
    if isinstance(name, str):
        if job.options.model and name.endswith(".json"):
            return {"hf_config": os.path.abspath(name)}
        found = known_model(name)
        if found is not None:
            return found
        config = config_of(name, Path(job.path).parent)
        if config is not None:
            return {"hf_config": config}
    shown = f'"{name}"' if name else "nothing"
    raise ValueError(f"{key}: expected a model that is built in (equipoise list models), a folder with its config.json, or one in the cache of "
                     f"Hugging Face, found {shown}; --model NAME or --model config.json says which shape it has")


def has_experts(model: Model) -> bool:
    return _has(model, "with_experts", "experts", "num_experts|n_routed_experts|num_local_experts")


def has_latent_attention(model: Model) -> bool:
    return _has(model, "with_latent_attention", "mla", "kv_lora_rank")


def _has(model: Model, names: str, key: str, of_config: str) -> bool:
    """Finds a model in the list of built-in ones, by the shape's key, or by the numbers of a config.json."""
    if isinstance(model, str):
        return model in of_tables("names")[names]
    if "hf_config" not in model:
        return key in model
    try:
        return bool(re.search(rf'"({of_config})"\s*:\s*[1-9]', Path(model["hf_config"]).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False


def layers_of(model: Model) -> Optional[int]:
    """None if only its config.json tells."""
    if isinstance(model, dict):
        return model.get("layers")
    return of_tables("names")["built_in"].get(model)
