"""The model card of an exported version: metadata that the hub reads, above ``card.md.jinja``."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rlforge.config.games import EnvEntry
from rlforge.config.keys import conf_dir
from rlforge.config.model import ALL_LINEAR
from rlforge.config.overrides import assignment
from rlforge.config.per_policy import of_policy, policy_names
from rlforge.config.prompts import PromptConfig
from rlforge.config.schema import PolicyConfig
from rlforge.errors import ConfigError, RlforgeError, command_line
from rlforge.games.base import View
from rlforge.games.markup import chat_text, message_forms
from rlforge.games.prompts import Prompter
from rlforge.kinds import kind_of
from rlforge.models.files import AVERAGE
from rlforge.models.made import made_model
from rlforge.record.results import by_pairing
from rlforge.rollout.lineup import asked_as, eval_envs, train_envs
from rlforge.show import formatting
from rlforge.show.report.data import RunData
from rlforge.system.checkpoint import policy_in
from rlforge.types import EvalResult, PolicyRef

Form = Literal["adapter", "merged", "full", "base"]
"""An adapter; whole weights with the adapter merged; trained whole weights; the untrained model."""

_TEMPLATE = Path(__file__).with_name("card.md.jinja")


class Exported(NamedTuple):
    """An exported version, as the template of the card shows it.

    Attributes:
        step: Updates behind the policy.
        base: Id, folder or kind of the base model; on_hub: whether it is an id of the hub.
        place: The repository, or the name of the folder.
        prompt: A text or messages.
        gap: Largest difference in log-probs that merging made.
        curves: Name of the picture.
    """

    config: PolicyConfig
    run: RunData
    policy: PolicyRef
    step: int
    form: Form
    base: str
    on_hub: bool
    place: str
    dtype: str
    prompt: str | list[dict[str, str]] | None
    gap: float | None
    curves: str | None


def model_card(version: Exported) -> str:
    # Within the function this name is the hub's, not that of ``rlforge.types``.
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    config, run, policy = version.config, version.run, version.policy
    own = of_policy(config, policy.name)  # of several policies with the groups of this one
    kind, averaged = kind_of(config), policy.uid.endswith(f"-{AVERAGE}")
    measured = [] if averaged else _measured(run, policy.name, version.step)
    adapter = version.form == "adapter"
    relation, lora = ("adapter", ["lora"]) if adapter else ("finetune", [])
    trained_by = "sft" if kind.supervised else "reinforcement-learning"
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
        for _, row in measured
    ]
    data = ModelCardData(
        # The hub makes a link of it: a folder of this machine would lead nowhere.
        base_model=version.base if version.on_hub else None,
        base_model_relation=relation if version.on_hub else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["rlforge", trained_by, "text-games", own.algorithm.name, *lora],
        model_name=f"{run.name}, {policy.uid}",
        eval_results=results or None,
    )
    # A reader has the experiments of rlforge only: of any other its groups are written out.
    named = re.search(r"\+experiment=(\S+)", run.command)
    known = named is not None and (conf_dir() / "experiment" / f"{named[1]}.yaml").is_file()
    card = ModelCard.from_template(
        data,
        str(_TEMPLATE),
        **version._asdict(),
        own=own,
        measured=measured,
        averaged=averaged,
        policies=policy_names(config),
        kind=kind,
        made=made_model(config.model.kind) is not None,
        environments=_environments(config),
        asked=asked_as(config, policy=policy.name),
        experiment=[named[0]] if named and known else [],
        groups=list(_own_groups(own, run.command, known)),
        all_linear=config.model.lora.target_modules == ALL_LINEAR,
        say=formatting,
        command=command_line,
        quoted=shlex.join,
        assignment=assignment,
    )
    return str(card)


def example_prompt(
    run: RunData, config: PolicyConfig, tokenizer: Any, policy: str = ""
) -> str | list[dict[str, str]] | None:
    """A prompt that ``policy`` was asked, as messages where these give it, or None."""
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
    # As the code of a card encodes it.
    return list(tokenizer.encode(text, add_special_tokens=False)) == list(ids)


def _measured(run: RunData, name: str, step: int) -> list[tuple[EvalResult, EvalResult]]:
    """First and last evaluation up to ``step``, per environment and opponent."""
    own = [
        one
        for one in run.evals
        if one.step <= step and (not name or policy_in(one.policy_uid) == name)
    ]
    return [(results[0], results[-1]) for results in by_pairing(own).values()]


def _environments(config: PolicyConfig) -> str:
    if (games := config.games) is None:
        return "a simulated market"
    envs = dict.fromkeys(env.id for env in (*train_envs(games), *eval_envs(games)))
    return ", ".join(f"`{env}`" for env in envs)


def _own_groups(config: PolicyConfig, command: str, known: bool) -> Iterator[str]:
    """Overrides for groups that no experiment of rlforge has."""
    if config.games is not None and (not known or re.search(r"\benv[.=]", command)):
        envs = config.games.env.train
        games = [_differences(game, EnvEntry()) | {"id": game.id} for game in envs]
        yield assignment("env.train", games)
    if config.prompts:
        texts = {name: _differences(one, PromptConfig()) for name, one in config.prompts.items()}
        yield assignment("prompts", texts)


def _differences(group: Any, default: Any) -> dict[str, Any]:
    usual = asdict(default)
    return {key: setting for key, setting in asdict(group).items() if setting != usual[key]}
