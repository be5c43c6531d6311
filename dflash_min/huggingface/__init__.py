"""Hugging Face models as targets: their sizes, tokenizers and modules."""
