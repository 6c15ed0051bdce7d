"""A kind of model: files that code makes at first use, here in about a second."""

from collections.abc import Callable
from pathlib import Path

from rlforge import MadeModel


def create(folder: Path, progress: Callable[[str], None]) -> None:
    """A Llama of a few thousand random parameters whose tokens are bytes."""
    import torch  # here: commands that only look at a configuration need not wait for it
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    progress("making a random Llama")
    letters = ["<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(letters),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=None,
        eos_token_id=0,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)


RANDOM_LLAMA = MadeModel(cache_name="example-random-llama-1", create=create)
