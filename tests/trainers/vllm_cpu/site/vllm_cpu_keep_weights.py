"""vLLM plug-in (entry point group vllm.general_plugins) of every vLLM process: weights can be loaded again.

vLLM's CPU linear layer packs its weights for oneDNN and leaves an empty parameter, so that no trainer can
synchronise weights ("'Parameter' object has no attribute 'weight_loader'"). Without oneDNN it keeps them.
"""


def register() -> None:
    import vllm._custom_ops

    vllm._custom_ops._supports_onednn = False
