"""Makes a tiny random Qwen2 and a byte-level tokenizer with a chat template: tiny_model.py FOLDER

Logits are sharp (initializer_range 0.3) and the vocabulary is the tokenizer's: with a near-uniform model a
weight synchronisation between trainer and rollout that does nothing would not be seen.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE(unk_token=None))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=506,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(
        (f"What is {a} plus {b}? The answer is {a + b}." for a in range(30) for b in range(30)), trainer
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        bos_token=None,
        additional_special_tokens=["<|im_start|>"],
        model_max_length=512,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def main() -> None:
    folder = sys.argv[1]
    words = tokenizer()
    words.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        dtype="float32",
        initializer_range=0.3,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = words.eos_token_id
    model.generation_config.pad_token_id = words.pad_token_id
    model.save_pretrained(folder)


if __name__ == "__main__":
    main()
