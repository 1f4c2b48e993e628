"""verl 0.9.1 asks for flash attention whenever it loads a critic: without a GPU it has torch's."""

from transformers import AutoModelForTokenClassification

_load = AutoModelForTokenClassification.from_pretrained


def _with_torchs(*arguments, **named):
    return _load(*arguments, **named | {"attn_implementation": "sdpa"})


AutoModelForTokenClassification.from_pretrained = _with_torchs
