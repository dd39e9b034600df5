"""sm120patch: apply, verify and revert source patches of SGLang and FlashInfer on SM120."""

__version__ = "0.1.0"
