"""SGLang, an engine that trainers generate with."""

FOLLOWS = ("sglang.srt.managers.tokenizer_manager",)
