"""The model card of an exported version: Markdown behind the metadata that the hub reads (YAML)."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from rlforge.config.games import EnvEntry
from rlforge.config.keys import conf_dir
from rlforge.config.model import ALL_LINEAR
from rlforge.config.overrides import in_grammar
from rlforge.config.per_policy import of_policy, policy_names
from rlforge.config.prompts import PromptConfig
from rlforge.config.schema import PolicyConfig
from rlforge.errors import ConfigError, RlforgeError
from rlforge.games.base import View
from rlforge.games.markup import chat_text, message_forms
from rlforge.games.prompts import Prompter
from rlforge.kinds import kind_of
from rlforge.models.made import made_model
from rlforge.record.results import by_pairing
from rlforge.rollout.lineup import asked_as, eval_envs, train_envs
from rlforge.show.formatting import count, duration, number, percent
from rlforge.show.report.data import Row, RunData
from rlforge.system.checkpoint import policy_in
from rlforge.types import EvalResult, PolicyRef, value

Form = Literal["adapter", "merged", "full", "base"]
"""An adapter; whole weights with the adapter merged; trained whole weights; the untrained model."""

_FORMS = {
    "adapter": "The folder holds the LoRA adapter, in PEFT's format, without the base model.",
    "merged": "The folder holds all weights; the LoRA adapter was merged into them in float32.",
    "full": "The folder holds all weights, which were all trained.",
    "base": "The folder holds the weights from before training.",
}

_COMPARISON = (
    "Episodes in markets that the run did not train on, before the run and after it, with the "
    "version that served then. The scripted traders do not change; their results do, since the "
    "policy trades in the same markets."
)


@value
class Exported:
    """What a card is about.

    place: repository of the hub, or name of the folder. step: updates behind the policy. base: id,
    folder or kind; on_hub: whether it is an id. prompt: text or messages; None where there is none.
    gap: largest difference in log-probs that merging made; None where nothing was merged. curves:
    name of the picture, if any.
    """

    place: str
    policy: PolicyRef
    step: int
    form: Form
    base: str
    on_hub: bool
    dtype: str
    config: PolicyConfig
    run: RunData
    prompt: str | list[dict[str, str]] | None
    gap: float | None
    curves: str | None

    @property
    def uid(self) -> str:
        return self.policy.uid

    @property
    def own(self) -> PolicyConfig:
        """The configuration; of several policies with the groups of this one."""
        return of_policy(self.config, self.policy.name)


def model_card(exported: Exported) -> str:
    """The card as Markdown."""
    parts = [
        f"---\n{_metadata(exported)}\n---",
        f"# {exported.run.name}, {exported.uid}",
        _summary(exported),
        *_results(exported),
        *_use(exported),
        *_training(exported),
        *_limits(exported),
    ]
    return "\n\n".join(parts) + "\n"


def example_prompt(
    run: RunData, config: PolicyConfig, tokenizer: Any, policy: str = ""
) -> str | list[dict[str, str]] | None:
    """A prompt that ``policy`` was asked, as messages where these give it; None: there is none."""
    prompter = Prompter(tokenizer, config.prompts)
    asked = kind_of(config).asked(config, run.paths.root, policy)
    for ids, form, observation in asked:
        text = str(tokenizer.decode(ids, skip_special_tokens=False))
        view = View(player_id=0, observation=observation)
        try:
            said = prompter.messages(form, view)
        except RlforgeError:  # the template wants more than the observation
            return text
        for written, _ in message_forms(said) if tokenizer.chat_template else ():
            with contextlib.suppress(ConfigError):  # it refuses this form
                if _gives(tokenizer, chat_text(written, tokenizer), ids):
                    return [dict(message) for message in written]
        # Some tokenizers decode to another text than the one that they encoded.
        whole = prompter.render(form, said).text
        begin = str(tokenizer.bos_token or "")
        return next((o for o in (whole, f"{begin}{whole}") if _gives(tokenizer, o, ids)), text)
    return None


def _gives(tokenizer: Any, text: str, ids: Sequence[int]) -> bool:
    """Whether the code of a card makes ``ids`` of ``text``."""
    return list(tokenizer.encode(text, add_special_tokens=False)) == list(ids)


# ---------------------------------------------------------------- the parts


def _metadata(exported: Exported) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    config = exported.own
    relation, lora = ("adapter", ["lora"]) if exported.form == "adapter" else ("finetune", [])
    kind = "sft" if kind_of(config).supervised else "reinforcement-learning"
    results = [
        EvalResult(
            task_type="reinforcement-learning",
            task_name="Playing text games",
            dataset_type=row.env_id,
            dataset_name=row.env_id,
            metric_type="win_rate",
            metric_name=f"wins against {row.opponent}",
            metric_value=round(row.win_rate, 4),
        )
        for _, row in _measured(exported)
    ]
    data = ModelCardData(
        base_model=exported.base if exported.on_hub else None,
        base_model_relation=relation if exported.on_hub else None,
        library_name="peft" if exported.form == "adapter" else "transformers",
        pipeline_tag="text-generation",
        tags=["rlforge", kind, "text-games", config.algorithm.name, *lora],
        model_name=f"{exported.run.name}, {exported.uid}",
        eval_results=results or None,
    )
    return data.to_yaml()


def _summary(exported: Exported) -> str:
    config = exported.config
    base = f"[{exported.base}](https://huggingface.co/{exported.base})"
    if not exported.on_hub:
        shown = exported.base if exported.form == "adapter" else Path(exported.base).name
        base = f"`{shown}`"
    if made_model(config.model.kind) is not None:
        base += ", a model that rlforge makes on a machine"
    what = ", ".join(_environments(config))
    version = f"rlforge {exported.run.summary.get('versions', {}).get('rlforge', '')}".strip()
    return (
        f"A language model that was trained by {_learned(exported)[0]} to play {what}, with "
        f"{version}. This is its version after {exported.step} updates. {_among(exported)}"
        f"Base model: {base}. {_FORMS[exported.form]} Data type: {exported.dtype}."
    )


def _among(exported: Exported) -> str:
    """Of several policies of a run, which one it is; empty where there is one."""
    if not (name := exported.policy.name):
        return ""
    names = ", ".join(f"`{one}`" for one in policy_names(exported.config))
    return (
        f"The run trained several policies ({names}), and this is `{name}`; numbers of updates, "
        "games, tokens and samples are those of all of them. "
    )


def _results(exported: Exported) -> Iterator[str]:
    about, table = _windows(exported) if exported.run.comparison else _evaluations(exported)
    if not table and exported.curves is None:
        return
    yield "## Results"
    if table:
        yield about
        yield table
    if exported.curves is not None:
        yield f"![Curves of the run]({exported.curves})"


def _evaluations(exported: Exported) -> tuple[str, str]:
    """Explanation and table of evaluation games; empty without any."""
    about = (
        "Wins / draws / losses in games with seats swapped; in brackets the 95 % interval of the "
        "wins (Wilson). `base` is the model before training. Sampling temperature: "
        f"{exported.config.eval_temperature:g}."
    )
    heads = ("environment", "opponent", "at the start", exported.uid, "after updates", "games")
    rows = []
    for first, last in _measured(exported):
        names = [f"`{last.env_id}`", f"`{last.opponent}`"]
        rows.append([*names, _rates(first), _rates(last), str(last.step), str(last.games)])
    return about, _table(heads, rows)


def _windows(exported: Exported) -> tuple[str, str]:
    """Explanation and table of a continuous run's comparison; empty without one."""
    before, after = (
        exported.run.comparison.get(when, {}).get("players", {}) for when in ("before", "after")
    )
    rows = []
    for player, first in before.items():
        last = after.get(player, {})
        rewards = [number(first["avg_reward"], 3), number(last.get("avg_reward"), 3)]
        wins = [percent(first["win_rate"], 1), percent(last.get("win_rate"), 1)]
        rows.append([player, *rewards, *wins])
    heads = ("player", "mean reward before", "after", "trades with a profit before", "after")
    return _COMPARISON, _table(heads, rows)


def _use(exported: Exported) -> Iterator[str]:
    yield "## Use"
    if exported.prompt is not None:
        yield (
            "A turn of a game is asked and answered like this; `generation_config.json` "
            "holds the sampling of the training."
        )
        yield f"```python\n{_snippet(exported)}\n```"
    asked = asked_as(exported.config, policy=exported.policy.name)
    yield (
        f"Prompts have the form of rlforge's template `{asked.template}`, and the action is read "
        f"from the answer by its extraction `{asked.extraction}`. rlforge builds both:"
    )
    yield f"```bash\n{_command(exported)}\n```"


def _command(exported: Exported) -> str:
    """The command that trains the version on, in prompts of its form, on any machine."""
    config, command, lora = exported.own, exported.run.command, exported.config.model.lora
    named = re.search(r"\+experiment=(\S+)", command)
    known = named is not None and (conf_dir() / "experiment" / f"{named[1]}.yaml").is_file()
    lines = [["rlforge", config.command, *([named[0]] if named and known else []), "model=hf"]]
    if exported.form == "adapter":
        lines[0] += [f"model.name={exported.base}"]
        lines += [["learner.initial_adapter=FOLDER"]]
        lines[1] += [f"model.lora.rank={lora.rank}", f"model.lora.alpha={lora.alpha}"]
    else:
        lines[0] += ["model.name=FOLDER"]
    asked = asked_as(exported.config, policy=exported.policy.name)
    lines += [
        [f"model.prompt_template={asked.template}", f"model.action_extraction={asked.extraction}"]
    ]
    if config.games is not None and (not known or re.search(r"\benv[.=]", command)):
        envs = config.games.env.train
        games = [_differences(game, EnvEntry()) | {"id": game.id} for game in envs]
        lines += [[f"env.train={_on_command_line(games)}"]]
    if config.prompts:
        texts = {name: _differences(one, PromptConfig()) for name, one in config.prompts.items()}
        lines += [[f"prompts={_on_command_line(texts)}"]]
    return " \\\n    ".join(map(shlex.join, lines))


def _differences(group: Any, default: Any) -> dict[str, Any]:
    """The settings of ``group`` that are not those of ``default``."""
    usual = asdict(default)
    return {key: setting for key, setting in asdict(group).items() if setting != usual[key]}


def _on_command_line(setting: object) -> str:
    return in_grammar(setting, quote='"').replace("${", "\\${")


def _training(exported: Exported) -> Iterator[str]:
    yield "## Training"
    config, run = exported.own, exported.run
    done: Row = next((row for row in reversed(run.metrics) if row["step"] <= exported.step), {})
    learner, lora = config.learner, config.model.lora
    trained = "all weights"
    if learner.train == "lora":
        targets = lora.target_modules
        layers = ", ".join(targets) if isinstance(targets, list) else targets
        layers = "all linear layers but the output layer" if layers == ALL_LINEAR else layers
        trained = f"LoRA of rank {lora.rank}, alpha {lora.alpha}, on {layers}"
        if lora.last_layers is not None:
            trained += f" of the last {lora.last_layers} layers"
    rows = [
        ("data", _learned(exported)[1]),
        ("environments", ", ".join(_environments(config))),
        ("algorithm", config.algorithm.name),
        ("trained weights", trained),
        ("learning rate", number(learner.learning_rate)),
        ("updates", str(exported.step)),
        ("games", count(done["games"]) if "games" in done else ""),
        ("tokens generated", count(done["tokens"]) if "tokens" in done else ""),
        ("samples learned from", count(done["samples_seen"]) if "samples_seen" in done else ""),
        ("time", duration(done["time_s"]) if "time_s" in done else ""),
        ("seed", str(config.seed)),
        ("command", f"`{run.command.splitlines()[0]}`" if run.command else ""),
        ("versions", ", ".join(f"{n} {v}" for n, v in run.summary.get("versions", {}).items())),
    ]
    yield _table(("", ""), [row for row in rows if row[1]])
    yield "`config.yaml` is the complete configuration."


def _limits(exported: Exported) -> Iterator[str]:
    yield "## Limits"
    lines = [
        "It was trained and measured on the environments above, with prompts of the form above. "
        "Other tasks and other prompts were not measured.",
        "Results hold against these opponents at this temperature; other opponents may find "
        "weaknesses that they did not.",
        "A critic (value head) that was trained with it is not part of the export.",
    ]
    if exported.config.model.kind.startswith("tiny"):
        lines.append("It knows the words of its games and no natural language.")
    if exported.gap is not None:
        lines.append(
            f"Log-probabilities of the merged weights in {exported.dtype} differ from those with "
            f"the adapter by {exported.gap:.2g} at most, measured over a prompt."
            + (
                ""
                if exported.dtype == "float32"
                else " An export with `--dtype float32` keeps the rounded part."
            )
        )
    if exported.on_hub:
        lines.append("The licence of the base model applies.")
    yield "\n".join(f"- {line}" for line in lines)


# ---------------------------------------------------------------- their content


def _measured(exported: Exported) -> list[tuple[EvalResult, EvalResult]]:
    """First and last evaluation up to the version, per environment and opponent."""
    name = exported.policy.name
    own = [
        one
        for one in exported.run.evals
        if one.step <= exported.step and (not name or policy_in(one.policy_uid) == name)
    ]
    return [(results[0], results[-1]) for results in by_pairing(own).values()]


def _rates(row: EvalResult) -> str:
    low, high = row.ci95
    shares = (row.win_rate, row.draw_rate, row.loss_rate)
    rates = " / ".join(f"{100 * share:.1f}" for share in shares)
    return f"{rates} % ({percent(low, 1)} to {percent(high, 1)})"


def _environments(config: PolicyConfig) -> list[str]:
    if (games := config.games) is None:
        return ["a simulated market"]
    envs = dict.fromkeys(env.id for env in (*train_envs(games), *eval_envs(games)))
    return [f"`{env}`" for env in envs]


def _learned(exported: Exported) -> tuple[str, str]:
    """The kind of training, and what it learned from."""
    kind = kind_of(exported.config)
    how = "supervised fine-tuning" if kind.supervised else "reinforcement learning"
    return how, kind.learned(exported.config, exported.policy.name)


def _snippet(exported: Exported) -> str:
    """Code that asks the model with the example prompt, with transformers and PEFT alone."""
    if exported.form == "adapter":
        load = ["from peft import AutoPeftModelForCausalLM"]
        load += ["from transformers import AutoTokenizer, GenerationConfig"]
        model = "AutoPeftModelForCausalLM"
        sampling = ["model.generation_config = GenerationConfig.from_pretrained(folder)"]
    else:
        load = ["from transformers import AutoModelForCausalLM, AutoTokenizer"]
        model, sampling = "AutoModelForCausalLM", []
    if isinstance(exported.prompt, str):
        prompt = [f"prompt = {_literal(exported.prompt, 0)}"]
    else:
        assert exported.prompt is not None
        said = ",\n".join(
            f'    {{"role": "{one["role"]}", "content": {_literal(one["content"], 4)}}}'
            for one in exported.prompt
        )
        arguments = exported.config.model.chat_template_args
        given = f", **{arguments!r}" if arguments else ""
        prompt = [
            f"messages = [\n{said},\n]",
            "prompt = tokenizer.apply_chat_template(",
            f"    messages, tokenize=False, add_generation_prompt=True{given}",
            ")",
        ]
    lines = [
        *load,
        "",
        f'folder = "{exported.place}"  # this folder',
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        f'model = {model}.from_pretrained(folder, dtype="auto")',
        *sampling,
        *prompt,
        'ids = tokenizer.encode(prompt, add_special_tokens=False, return_tensors="pt")',
        "answer = model.generate(input_ids=ids, attention_mask=ids.new_ones(ids.shape))",
        "print(tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True))",
    ]
    return "\n".join(lines)


def _literal(text: str, indent: int) -> str:
    """A text as Python code, each of its lines on a line of its own."""
    lines = text.splitlines(keepends=True)
    if len(lines) < 2:
        return repr(text)
    space = " " * indent
    return "(\n" + "".join(f"{space}    {line!r}\n" for line in lines) + f"{space})"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; empty without rows."""
    if not rows:
        return ""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
