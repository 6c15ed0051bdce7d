"""All families of causal language models: which train exactly, and why others are refused.

    python benchmarks/families.py [FAMILY ...] [--again]

Of each class of transformers' causal-LM mapping a tiny random model is made. It trains two updates
at TicTacToe, on-policy and otherwise with default keys, an adapter and full weights, one and two
epochs, with the actors in one process. A run is *exact* where in each update the learner's
log-probs are those that the engine recorded, the mean importance weight is 1 (with one epoch: later
steps are off-policy), and the recorded log-probs are those of plain transformers and PEFT, all to
1e-5. A call goes on where the last stopped; families that are named run again, and with ``--again``
those that are neither exact nor refused.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from common import RESULTS, record

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests/harness

EXACT, MOST_PARAMETERS = 1e-5, 8_000_000
#: On-policy, so that weights are 1, and as few tokens as two updates need.
SETTINGS = (
    *("env=tictactoe", "model=hf", "model.dtype=float32", "engine.max_tokens=8"),
    *("engine.max_model_len=1024", "engine.max_parallel_seq=32", "buffer.max_staleness=0"),
    *("learner.total_updates=2", "learner.batch_size=12", "collector.num_train_workers=8"),
    *("collector.num_eval_workers=4", "eval.games=2", "eval.final_games=2"),
    *("eval.opponents=[random_legal]", "hardware=cpu", "hardware.threads=1"),
    "tracker.progress=off",
)
#: What prompts are made of.
GAME = r"""You are a player in a text game. Choose a valid action that helps you to win. Think it
 through step by step, then give your final action inside \boxed{}.<|im_end|>
You are Player 0 in Tic Tac Toe.
Your goal is to win three in a row (horizontally, vertically, or diagonally) on the board.
On your turn, you should select the square number (0-8) you want to put your mark in next.
For example, '[4]' places your mark in the center cell of the board.

As Player 0, you will be 'O', while your opponent is 'X'.

Current Board:

 0 | 1 | 2
---+---+---
 3 | 4 | 5
---+---+---

Available Moves: '[0]', '[1]', '[2]', '[3]', '[4]', '[5]', '[6]', '[7]', '[8]'
Your last action was not accepted. The submitted move does not follow the correct format. Try
 another action. Your last answer had no \boxed{...} with an action in it.""".replace("\n ", " ")
TRAINED = {"adapter": "default", "full weights": "full"}

#: Sizes of a small model by the names that configurations have for them.
SIZES: dict[str, int] = {
    name: size
    for size, names in {
        32: "hidden_size d_model n_embd dim emb_dim embedding_size word_embed_proj_dim dim_model "
        "lru_width embedding_dim input_embedding_size output_embedding_size embed_dim "
        "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size "
        "moe_shared_expert_intermediate_size expert_ffn_hidden_size backbone_hidden_size "
        "hidden_size_global attention_hidden_size window_size sliding_window "
        "attention_chunk_size sliding_window_size local_attention expert_intermediate_size "
        "pronunciation_embed_dim shape_embed_dim linear_num_key_heads_size max_window_layers_size "
        "ple_embed_dim",
        64: "intermediate_size ffn_dim d_ff n_inner dff d_inner decoder_ffn_dim encoder_ffn_dim "
        "dim_ff ffn_hidden_size dense_intermediate_size intermediate_size_mlp feed_forward_size "
        "router_hidden_size audio_vocab_size attn_intermediate",
        16: "q_lora_rank kv_lora_rank hidden_size_per_layer_input laurel_rank o_lora_rank "
        "attention_head_dim state_size mamba_d_state ssm_state_size mamba_dt_rank "
        "time_step_rank attention_head_size hc_lowrank",
        8: "head_dim kv_channels v_head_dim qk_nope_head_dim qk_rope_head_dim rotary_dim "
        "dim_head d_kv d_head swa_head_dim index_head_dim linear_key_head_dim "
        "linear_value_head_dim linear_head_dim mamba_d_head mamba_head_dim mamba_headdim "
        "global_head_dim",
        4: "num_attention_heads n_heads n_head num_heads decoder_attention_heads "
        "encoder_attention_heads num_decoder_attention_heads num_encoder_attention_heads "
        "attention_heads swa_num_attention_heads num_experts n_routed_experts num_local_experts "
        "moe_num_experts index_n_heads zero_expert_num mamba_num_heads linear_num_value_heads "
        "linear_num_heads prompt_length mem_len",
        2: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers "
        "num_decoder_layers num_encoder_layers num_key_value_heads kv_n_heads num_kv_heads "
        "swa_num_key_value_heads num_experts_per_tok num_experts_per_token moe_topk moe_top_k "
        "moe_k linear_num_key_heads split_ngram_parts heads_per_ngram o_groups num_blocks "
        "num_global_key_value_heads num_layers_per_stack",
        1: "n_group topk_group num_expert_group n_shared_experts num_shared_experts "
        "moe_num_shared_experts first_k_dense_replace num_nextn_predict_layers num_dense_layers "
        "num_kv_shared_layers",
        256: "encoder_hash_byte_group_vocab ngram_vocab_size_base",
        1024: "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions "
        "context_length original_max_position_embeddings",
    }.items()
    for name in names.split()
}
VOCABULARIES = ("vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size", "codebook_size")

_HYBRID = {"layer_types": ["conv", "full_attention"]}
_GEMMA_3N = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "intermediate_size": [64] * 4,
    "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
}
_INDEXER = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
#: What no rule of ``small`` knows.
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 8},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "gemma3n_text": _GEMMA_3N,
    # Unscaled attention magnifies rounding.
    "gemma4_unified": {"text_config": {"initializer_range": 0.02}},
    "gemma4_unified_text": {"initializer_range": 0.02},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"mamba_n_heads": 8},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": _HYBRID,
    "lfm2_moe": _HYBRID,
    "mamba2": {"num_heads": 8, "n_groups": 1},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"n_groups": 1},
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": _INDEXER,
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 5,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid"],
    },
}


def small(kind: type[Any], vocab_size: int) -> dict[str, Any]:
    """Arguments that make a small configuration of class ``kind``."""
    from transformers import PretrainedConfig

    default = kind()
    given = {name: each for name, each in vars(default).items() if not name.startswith("_")}
    values: dict[str, Any] = {}
    for name in ("initializer_range", "init_std", "initializer_std"):
        if name in given:  # so that a wrong mask or position shows
            values[name] = 0.1
    for name, each in given.items():
        if isinstance(each, PretrainedConfig):
            values[name] = small(type(each), vocab_size)
        elif isinstance(each, int) and not isinstance(each, bool):
            if name in SIZES:
                values[name] = SIZES[name] if SIZES[name] > 1000 else min(SIZES[name], each)
            elif name in VOCABULARIES:
                values[name] = vocab_size
            elif name.endswith(("token_id", "token_index")):
                values[name] = 0
    if "kv_lora_rank" in given:  # every head has keys of its own
        values["num_key_value_heads"] = SIZES["num_attention_heads"]
    depth = getattr(default, "num_hidden_layers", None)
    kinds = given.get("layer_types") or given.get("layers_block_type") or []
    if depth and len(kinds) == depth:
        firsts = sorted({kinds.index(each) for each in kinds})
        chosen = sorted({*firsts, *[i for i in range(depth) if i not in firsts][: 2 - len(firsts)]})
        for name, each in given.items():
            if isinstance(each, list | tuple) and len(each) == depth:
                values[name] = [each[index] for index in chosen]
                if name in SIZES:
                    values[name] = [SIZES[name]] * len(chosen)
        values["num_hidden_layers"] = len(chosen)
    return values


def tokenizer() -> Any:
    """Of the words of the game; a turn of a chat is marked as in ChatML."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    special = ["<pad>", "<eos>", "<bos>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    raw.train_from_iterator([GAME] * 50, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>"
    )
    made.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return made


def tiny(name: str, vocab_size: int) -> Any:
    """A small random model of family ``name``."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[name]
    values = small(kind, vocab_size)
    for key, own in OWN.get(name, {}).items():
        values[key] = values[key] | own if isinstance(values.get(key), dict) else own
    config = kind(**values)
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"{size:,} parameters")
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config)


def recorded_gap(folder: Path, run: Path) -> float:
    """Largest difference of a recorded log-prob to that of plain transformers and PEFT."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from rlforge.record.game_files import read_games

    worst, said = 0.0, dict[int, list[Any]]()
    for game in read_games(run):
        for turn in game.turns:
            if turn.completion.token_ids:
                said.setdefault(turn.completion.policy_version, []).append(turn.completion)
    assert {0, 1} <= said.keys(), f"answers are of versions {sorted(said)}"
    for version, answers in said.items():
        saved = run / "checkpoints" / f"step-{version}"
        if (saved / "adapter_config.json").is_file():
            base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            model = PeftModel.from_pretrained(base, saved).eval()
        else:
            model = AutoModelForCausalLM.from_pretrained(
                saved if saved.is_dir() else folder, dtype=torch.float32
            ).eval()
        for answer in answers:
            prompt, tokens = list(answer.prompt_token_ids), list(answer.token_ids)
            with torch.no_grad():
                ids = torch.tensor([prompt + tokens])
                logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
            found = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
            worst = max(worst, float((found - torch.tensor(answer.logprobs)).abs().max()))
    return worst


def train(folder: Path, learner: str, epochs: int) -> tuple[str, float]:
    """How a run of the model in ``folder`` ends, and its largest gap."""
    import rlforge
    from rlforge.errors import ConfigError

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "run"
        lines = (*SETTINGS, f"learner={learner}", f"learner.epochs={epochs}")
        try:
            run = rlforge.train(*lines, f"model.name={folder}", run_dir=path)
        except ConfigError as error:
            where = "after" if path.exists() else "before"
            reason = str(error).replace(str(folder), "MODEL").removeprefix("model.name=MODEL: ")
            return f"refused {where} the start: {reason}", 0.0
        metrics = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        updates = [row for row in metrics if "loss" in row]
        gaps = [row.get("logprob_gap_mean", float("nan")) for row in updates]
        weights = [abs(row["importance_weight_mean"] - 1) for row in updates]
        recorded = recorded_gap(folder, run.path)
    found = {"gap": max(gaps), "recorded": recorded}
    if epochs == 1:  # later steps of an update are off-policy
        found["weight"] = max(weights)
    wrong = [f"{name} {each:.1e}" for name, each in found.items() if not each < EXACT]
    if len(updates) != 2:
        wrong.append(f"{len(updates)} updates")
    return (f"differs: {', '.join(wrong)}" if wrong else "exact"), max(found.values())


def ways(lines: Iterable[str]) -> str:
    """The plain ways that engine and learner take, of what they log."""
    known = {"reads every sequence whole": "whole passes", "padded, not packed": "padded"}
    return ", ".join(way for text, way in known.items() if any(text in line for line in lines))


def attempt(name: str, words: Any) -> dict[str, str]:
    """The row of a family."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        try:
            model = tiny(name, len(words))
            model.save_pretrained(folder)
            words.save_pretrained(folder)
            AutoModelForCausalLM.from_pretrained(folder)
        except Exception as error:  # a class may raise anything
            return {"small model": _line(error)}
        size, row = sum(p.numel() for p in model.parameters()), dict[str, str]()
        worst = slowest = 0.0
        notes: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda line: notes.append(line.getMessage())  # type: ignore[method-assign]
        logging.getLogger("rlforge").addHandler(handler)
        for what, learner in TRAINED.items():
            outcomes = []
            for epochs in (1, 2):
                begin = time.process_time()
                try:
                    outcome, gap = train(folder, learner, epochs)
                except Exception as error:
                    outcome, gap = f"fails: {_line(error)}", 0.0
                outcomes.append(outcome)
                worst, slowest = max(worst, gap), max(slowest, time.process_time() - begin)
            row[what] = next((each for each in outcomes if each != "exact"), "exact")
        logging.getLogger("rlforge").removeHandler(handler)
    about = {"parameters": f"{size:,}", "slowest run": f"{slowest:.1f} CPU s"}
    if worst:
        about["largest gap"] = f"{worst:.1e}"
    if found := ways(notes):
        about["plain ways"] = found
    return row | about


def _line(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {text} ({Path(place.filename).name})"


def _ends(row: dict[str, str], how: str) -> bool:
    """Whether both ways to train end so."""
    return all(row.get(what, "").startswith(how) for what in TRAINED)


def summary(rows: dict[str, dict[str, str]]) -> dict[str, int]:
    """How many families end how."""
    built = {name: row for name, row in rows.items() if "small model" not in row}
    refused = sum(_ends(row, "refused before the start") for row in built.values())
    exact = [row for row in built.values() if _ends(row, "exact")]
    adapters = sum(row["adapter"] == "exact" for row in built.values())
    return {
        "exact": len(exact),
        "exact with an adapter": adapters,
        "refused before the start": refused,
        "neither": len(built) - len(exact) - refused,
        "no small model": len(rows) - len(built),
    }


def is_open(row: dict[str, str]) -> bool:
    """Whether a family is neither exact nor refused."""
    return summary({"": row})["neither"] == 1


def save(rows: dict[str, dict[str, str]]) -> None:
    """Write the results so far, families by name."""
    record("families", summary(rows) | {"families": dict(sorted(rows.items()))})


def fail(cause: Exception) -> NoReturn:
    """In place of the end of an engine's process, which here is that of the sweep."""
    raise cause


def main() -> None:
    import torch
    import transformers
    from tests.harness.in_process import use_actors_in_process
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from rlforge.run.actors import engine

    parser = argparse.ArgumentParser(description="All families of causal language models.")
    parser.add_argument("families", nargs="*")
    parser.add_argument("--again", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    use_actors_in_process(setattr)
    engine.end = fail  # type: ignore[assignment]
    file = RESULTS / "families.json"
    known = json.loads(file.read_text())["families"] if file.is_file() else {}
    words = tokenizer()
    for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        done = name in known and not (asked.again and is_open(known[name]))
        if name not in asked.families if asked.families else done:
            continue
        known[name] = attempt(name, words)
        print(name, known[name])
        save(known)
    save(known)


if __name__ == "__main__":
    main()
