"""Write a Qwen3-MoE model of 12 MB with random weights, and a tokenizer trained on the way.

Runs in the environment of the real host: `python make_model.py DIRECTORY`.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM, set_seed

VOCABULARY = 8192
END = "<|end|>"


def tokenizer() -> PreTrainedTokenizerFast:
    library = Path(sysconfig.get_path("stdlib"))
    texts = (path.read_text("utf-8", "replace") for path in sorted(library.glob("*.py")))
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[END],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=trained, eos_token=END, model_max_length=4096)


def model() -> Qwen3MoeForCausalLM:
    set_seed(1)
    # The wide initial range makes greedy texts differ between prompts: a model that says the
    # same to everything would hide swapped or stale answers.
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=4096,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=0,
    )
    return Qwen3MoeForCausalLM(config).to(torch.bfloat16)


if __name__ == "__main__":
    tokenizer().save_pretrained(sys.argv[1])
    model().save_pretrained(sys.argv[1])
