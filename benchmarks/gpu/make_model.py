"""Writes a Qwen3-MoE checkpoint of 1 GB with random weights, and a tokenizer trained on the way.

Random, but of a scale that keeps activations alive: dummy weights answer everything alike and
would hide wrong sums. And as sure of its tokens as a trained model: with random weights alone many
tokens are about equally probable, greedy texts part by rounding at once, and comparing them says
nothing. So each token has one that follows it, read off what is left of it after all layers; less
or more from the layers changes how sure that is. Same seed, same bytes.

    python make_model.py DIRECTORY [--layers 8] [--hidden 2048] ...
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from pathlib import Path
from typing import Any

VOCABULARY = 8192
CONTEXT = 16384
"""Room for the long question of a verification."""
SURE = 52.0
"""Share of the following token in the logits: in the default shape four tokens of five are chosen
with a probability of 0.9 or more."""
END = "<|end|>"
SHAPE = {
    "layers": 8, "hidden": 2048, "heads": 32, "kv-heads": 4, "head-dim": 128, "experts": 16,
    "inner": 512, "top-k": 4,
}  # fmt: skip


def main() -> int:
    """Write config, tokenizer and weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    for name, default in SHAPE.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    shape = parser.parse_args()
    shape.directory.mkdir(parents=True, exist_ok=True)
    (shape.directory / "config.json").write_text(json.dumps(config(shape), indent=1))
    tokenizer(shape.directory)
    weights(shape)
    return 0


def config(shape: Any) -> dict[str, object]:
    """Configuration in the form that transformers 4.51 and later read."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": VOCABULARY,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner * 4,
        "moe_intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def tokenizer(directory: Path) -> None:
    """Train a byte-level BPE on the interpreter's own library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    library = Path(sysconfig.get_path("stdlib"))
    texts = (path.read_text("utf-8", "replace") for path in sorted(library.glob("*.py")))
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trained.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ))  # fmt: skip
    trained.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "model_max_length": CONTEXT,
    }))  # fmt: skip


def weights(shape: Any) -> None:
    """Draw every tensor of the checkpoint."""
    import torch
    from safetensors.torch import save_file

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(1)

    def drawn(*size: int, scale: float = 1.0) -> Any:
        values = torch.randn(*size, generator=generator, device=device)
        return (values * (scale / size[-1] ** 0.5)).to(torch.bfloat16).cpu()

    def ones(size: int) -> Any:
        return torch.ones(size, dtype=torch.bfloat16)

    width, inner = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    found = {
        "model.embed_tokens.weight": drawn(VOCABULARY, shape.hidden, scale=shape.hidden**0.5),
        "model.norm.weight": ones(shape.hidden),
    }
    following = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(1))
    readout = drawn(VOCABULARY, shape.hidden).float()
    embedded = found["model.embed_tokens.weight"].float()
    readout[following] += embedded[following.roll(1)] * (SURE / shape.hidden)
    found["lm_head.weight"] = readout.to(torch.bfloat16)
    for number in range(shape.layers):
        at = f"model.layers.{number}"
        found[f"{at}.input_layernorm.weight"] = ones(shape.hidden)
        found[f"{at}.post_attention_layernorm.weight"] = ones(shape.hidden)
        found[f"{at}.self_attn.q_proj.weight"] = drawn(width, shape.hidden)
        found[f"{at}.self_attn.k_proj.weight"] = drawn(inner, shape.hidden)
        found[f"{at}.self_attn.v_proj.weight"] = drawn(inner, shape.hidden)
        found[f"{at}.self_attn.o_proj.weight"] = drawn(shape.hidden, width)
        found[f"{at}.self_attn.q_norm.weight"] = ones(shape.head_dim)
        found[f"{at}.self_attn.k_norm.weight"] = ones(shape.head_dim)
        found[f"{at}.mlp.gate.weight"] = drawn(shape.experts, shape.hidden)
        for expert in range(shape.experts):
            for name, rows, columns in (("gate_proj", shape.inner, shape.hidden),
                                        ("up_proj", shape.inner, shape.hidden),
                                        ("down_proj", shape.hidden, shape.inner)):  # fmt: skip
                key = f"{at}.mlp.experts.{expert}.{name}.weight"
                found[key] = drawn(rows, columns, scale=1.5)
    save_file(found, str(shape.directory / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    raise SystemExit(main())
