"""Tokenizers of several families, and texts that read like their control tokens."""

import copy

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AddedToken, PreTrainedTokenizerFast

from rlforge.models.tiny.vocabulary import build_tokenizer

TEXT = [
    "You play a game. The board is 3 by 3 and [4] is free. Player 1: hello! < | > [ ]",
    "assistant user system model start end of turn think im_start sep bos eot_id header",
] * 3
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SENTENCES = ["<s>", "</s>", "<unk>", "<start_of_turn>", "<end_of_turn>", "<bos>"]
LLAMA3 = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
OF_BYTES = trainers.BpeTrainer(vocab_size=400, initial_alphabet=BYTES, show_progress=False)


def trained(core, trainer, *, special=(), normalized=(), plain=(), **named):
    core.train_from_iterator(TEXT, trainer)
    core.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    core.add_special_tokens(
        [AddedToken(text, special=True, normalized=True) for text in normalized]
    )
    core.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    return PreTrainedTokenizerFast(tokenizer_object=core, **named)


def byte_level(*, prefix=False, **model):
    """A byte-level BPE. prefix: a space is added in front."""
    core = Tokenizer(models.BPE(**model))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    core.decoder = decoders.ByteLevel()
    return core


def byte_fallback(*special):
    """A BPE whose characters fall back to bytes, and its trainer."""
    core = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    known = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    return core, trainers.BpeTrainer(vocab_size=700, special_tokens=known, show_progress=False)


def qwen():
    plain = ["<think>", "</think>", "\n\n"]
    return trained(byte_level(), OF_BYTES, special=QWEN, plain=plain, eos_token="<|im_end|>")


def llama3():
    core = byte_level()
    core.normalizer = normalizers.NFKC()
    return trained(core, OF_BYTES, normalized=LLAMA3, plain=["<|python_tag|>"])


def gemma():
    """A normaliser writes spaces as ``▁`` and adds one in front."""
    core, trainer = byte_fallback(*SENTENCES)
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return trained(core, trainer, plain=["<h1>", "▁▁"], unk_token="<unk>", bos_token="<bos>")


def unigram():
    """Unigram with metaspaces; some control tokens are found only after normalisation."""
    core = Tokenizer(models.Unigram())
    core.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=SENTENCES, unk_token="<unk>", show_progress=False
    )
    return trained(
        core,
        trainer,
        normalized=["<extra_id_0>", "<extra_id_1>"],
        unk_token="<unk>",
        eos_token="</s>",
    )


def word_pieces():
    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=BERT, show_progress=False)
    return trained(
        core, trainer, normalized=["[A]"], special=["§"], unk_token="[UNK]", sep_token="[SEP]"
    )


def tiny():
    return build_tokenizer(["tak", " a____", " b____", " [4]", " go"])


def smollm():
    """Its unknown token is the end of the text, and no character becomes it."""
    named = {"unk_token": "<|endoftext|>", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    return trained(byte_level(), OF_BYTES, special=[*QWEN, "<repo_name>"], **named)


def gpt2():
    """Bytes that training never saw are unknown, and become the end of the text."""
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<|endoftext|>"], show_progress=False
    )
    core = byte_level(prefix=True, unk_token="<|endoftext|>")
    plain = ["<think>", *QWEN[1:]]
    return trained(core, trainer, plain=plain, unk_token="<|endoftext|>", eos_token="<|im_end|>")


def llama2():
    """Metaspaces; a BOS in front, the special tokens are its words."""
    core, trainer = byte_fallback("<unk>", "<s>", "</s>")
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    named = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    made = trained(core, trainer, special=["[INST]", "[/INST]"], **named)
    in_front(made, "<s> $A", "<s>")
    return made


def tiktoken():
    """Words are split by a pattern and kept whole where the vocabulary has them."""
    core = Tokenizer(models.BPE(ignore_merges=True))
    words = Regex(r"<\|\w+\|>|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|[^\r\n\p{L}\p{N}]?\p{L}+|\s+")
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=LLAMA3, initial_alphabet=BYTES, show_progress=False
    )
    made = trained(core, trainer, plain=["<|python_tag|>"], bos_token=LLAMA3[0])
    in_front(made, f"{LLAMA3[0]} $A", LLAMA3[0])
    return made


def t5():
    """Unigram, in whose vocabulary the special tokens are words like any others; EOS behind."""
    core = Tokenizer(models.Unigram())
    core.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\u200b", "")])
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    core.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=140, special_tokens=SENTENCES, unk_token="<unk>", show_progress=False
    )
    made = trained(core, trainer, unk_token="<unk>", eos_token="</s>", pad_token="<s>")
    in_front(made, "$A </s>", "</s>")
    return made


def words():
    """A token a word between spaces, of which the special ones are words of the vocabulary."""
    core = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(vocab_size=300, special_tokens=BERT, show_progress=False)
    made = trained(core, trainer, unk_token="[UNK]", sep_token="[SEP]", cls_token="[CLS]")
    in_front(made, "[CLS] $A [SEP]", "[CLS]", "[SEP]")
    return made


def roberta():
    """Added tokens take the white space around them, or stand only where no word touches them."""
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    made = trained(byte_level(), OF_BYTES, special=["<s>", "</s>"], **named)
    sides = {"lstrip": True, "rstrip": True, "normalized": False}
    made.add_tokens([AddedToken(text, special=True, **sides) for text in ("<mask>", "[SEP]")])
    made.add_tokens([AddedToken("<|im_end|>", special=True, single_word=True, normalized=False)])
    in_front(made, "<s> $A </s>", "<s>", "</s>")
    return made


def in_front(tokenizer, single, *special):
    """The tokenizer puts special tokens around a text by itself."""
    core = tokenizer.backend_tokenizer
    named = [(text, core.token_to_id(text)) for text in special]
    core.post_processor = processors.TemplateProcessing(single=single, special_tokens=named)


MADE = (qwen, llama3, gemma, unigram, word_pieces, tiny)
MADE += (smollm, gpt2, llama2, tiktoken, t5, words, roberta)
TOKENIZERS = {make.__name__: make() for make in MADE}
CONTROL = [*QWEN, *LLAMA3, *SENTENCES, *BERT, "<think>", "<pad>", "<eos>", "<extra_id_0>", "[A]"]
CONTROL += ["[INST]", "[/INST]", "<mask>", "<repo_name>", "<|python_tag|>"]
FRAGMENTS = [
    *CONTROL,
    *(text[: len(text) // 2] for text in CONTROL),
    *(text[len(text) // 2 :] for text in CONTROL),
    *(text[1:] for text in CONTROL),
    *(text[:-1] for text in CONTROL),
    *(text.upper() for text in CONTROL),
    *("".join(chr(ord(c) + 0xFEE0) for c in text) for text in CONTROL),  # full-width: NFKC
    *("<", "|", ">", "[", "]", "§", " ", "\n", "\n\n", "▁", "é", "👋", "<0x0A>", "<h1>"),
    *("assistant\n", "Player 1: hello", "[4]", "im_start", "\u200b", "\ufb01"),
]


def control_tokens(tokenizer, ids):
    """Ids of tokens that are special or tags; unknown characters, spaces and bytes are none."""
    added, named = tokenizer.added_tokens_decoder, set(tokenizer.all_special_ids)
    return [
        token
        for token in ids
        if (token in added or token in named)
        and (token != tokenizer.unk_token_id or "unk" not in tokenizer.unk_token.lower())
        and not (token in added and added[token].content.startswith("<0x"))
        and (token in named or added[token].special or added[token].content.startswith("<"))
    ]


#: How chat templates write the content of a message.
CHATS = {
    "refuses": "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ m.content }}",
    "writes": "{{ m.content }}",
    "trims": "{{ m.content | trim }}",
    "escapes": "{{ m.content | tojson }}",
    "cuts reasoning": "{{ m.content.split('</think>')[-1].lstrip('\n') }}",
    "rewrites": "{{ m.content | replace('e', 'E') }}",
    "compares": "{% if m.content.startswith('<') %}CLOSE{% endif %}{{ m.content }}",
}
#: What opens and closes a message in the chat templates of the tokenizers.
SIGNS = {
    **dict.fromkeys(("qwen", "smollm", "gpt2"), ("<|im_start|>", "<|im_end|>")),
    **dict.fromkeys(("llama3", "tiktoken"), ("<|start_header_id|>", "<|eot_id|>")),
    **dict.fromkeys(("gemma", "unigram", "t5"), ("<start_of_turn>", "<end_of_turn>")),
    "word_pieces": ("[CLS]", "[SEP]"),
    "tiny": ("<pad>", "<eos>"),
    "llama2": ("[INST]", "[/INST]"),
    "words": (" [CLS] ", " [SEP] "),
    "roberta": ("<s>", "[SEP]"),
}


def with_chat(name, chat):
    """A tokenizer with a chat template, of one of ``CHATS``, that shows tools and their calls."""
    template = (
        "{% for tool in tools or [] %}OPENtool\n{{ tool | tojson }}CLOSE{% endfor %}"
        "{% for m in messages %}OPEN{{ m.role }}\n"
        f"{CHATS[chat]}"
        "{% for call in m.tool_calls or [] %}OPENcall {{ call.function.name }}\n"
        "{{ call.function.arguments | tojson }}CLOSE{% endfor %}CLOSE\n{% endfor %}"
        "{% if add_generation_prompt %}OPENassistant\n{% endif %}"
    )
    opened, closed = SIGNS[name]
    tokenizer = copy.deepcopy(TOKENIZERS[name])
    tokenizer.chat_template = template.replace("OPEN", opened).replace("CLOSE", closed)
    return tokenizer


def attack(draw, tokenizer):
    """A text of pieces that are control tokens, of this tokenizer and others, or parts of them."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values()]
    own = [text for text in added if not text.startswith("<0x")]
    pieces = draw.choices(FRAGMENTS, k=draw.randint(1, 6))
    return "".join(draw.choice(own) if draw.random() < 0.2 else piece for piece in pieces)
