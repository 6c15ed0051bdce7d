"""Runs that learn given answers (``rlforge sft``)."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlforge.config.schema import HardwareConfig, RunConfig
from rlforge.config.sft import SftConfig
from rlforge.errors import ConfigError, command_line
from rlforge.kinds import Controller, RunKind, Say
from rlforge.specs import ActorSpec, learner_node, tracker_node
from rlforge.system.files import reading
from rlforge.types import PolicyRef

if TYPE_CHECKING:
    from rlforge.config.compose import Composed
    from rlforge.preflight.policy import Problems
    from rlforge.rollout.datasets import AnswerEncoder
    from rlforge.samples import Sample

_FOR_GAMES = ("experiment", "env", "market", "model", "prompts", "engine", "hardware")
"""Keys and groups of a supervised run that mean the same to the run that trains on from it."""


class Players:
    """Players of the games in ``env.train``, whose answers are learned; ``SftConfig.teachers``.

    Classes of teachers who act elsewhere derive from this one.
    """

    #: Command that trains on from what they teach.
    command = RunConfig.command

    def problems(self, composed: Composed[SftConfig], *, keys: bool) -> Problems:
        """Problems of the players, and of where they act; ``keys`` as of ``RunKind.check``."""
        from rlforge.preflight.sft import game_problems

        return game_problems(composed, keys=keys)

    def check_prompts(self, config: SftConfig) -> None:
        """Raise ConfigError where prompts leave no room for an action."""
        from rlforge.preflight.games import check_room

        if config.data.players:
            check_room(config)

    def opponents(self, config: SftConfig) -> Mapping[str, Sequence[PolicyRef]]:
        """The policies among the players, by the key that names them."""
        from rlforge.league.names import parse_opponent

        return {"data.players": [*map(parse_opponent, config.data.players)]}

    def answers(
        self, config: SftConfig, run_dir: Path, encoder: AnswerEncoder, out: Counter[str], say: Say
    ) -> list[Sample]:
        """All answers as samples; ``out`` counts those that are none, by reason."""
        from rlforge.rollout.demonstrations import answers_in_games

        return answers_in_games(config, run_dir, encoder, out, say)


PLAYERS = Players()


class Supervised(RunKind[SftConfig]):
    """Supervised fine-tuning: the samples are made first, and no engine generates."""

    root = SftConfig
    supervised = True
    generates = False

    def check(self, composed: Composed[SftConfig], *, keys: bool = True) -> None:
        from rlforge.preflight.sft import check_sft

        check_sft(composed, keys=keys)

    def check_prompts(self, config: SftConfig) -> None:
        from rlforge.preflight.games import check_history

        check_history(config)
        config.teachers.check_prompts(config)

    def opponents(self, config: SftConfig) -> Mapping[str, Sequence[PolicyRef]]:
        met: Mapping[str, Sequence[PolicyRef]] = config.teachers.opponents(config)
        return met

    def nodes(self, config: SftConfig, hardware: HardwareConfig) -> tuple[ActorSpec, ...]:
        samples = ActorSpec(
            name="samples", actor=None, reads=("data", "env"), sends=(("learner", "TrainBatch"),)
        )
        learner = learner_node(config, hardware, ("tracker", "UpdateResult"))
        return tracker_node(), samples, learner

    def controller(self, config: SftConfig) -> Callable[[Any], Controller]:
        from rlforge.run.sft import SupervisedRun

        return SupervisedRun

    def prepare(self, config: SftConfig, run_dir: Path, say: Say) -> None:
        from rlforge.rollout.datasets import has_samples

        if not has_samples(run_dir):
            from rlforge.rollout.demonstrations import make_samples

            make_samples(config, run_dir, say)

    def counted(self, config: SftConfig, run_dir: Path) -> SftConfig:
        # The number of updates follows from that of the samples, which is known once they are made.
        from rlforge.rollout.datasets import count_samples, has_samples

        if not has_samples(run_dir):
            return config
        data = dataclasses.replace(config.data, max_samples=count_samples(run_dir))
        return dataclasses.replace(config, data=data)

    def check_resumable(self, config: SftConfig, run_dir: Path) -> None:
        from rlforge.rollout.datasets import has_samples
        from rlforge.run.resume import check_resumable

        if has_samples(run_dir):
            whole = self.counted(config, run_dir)
            check_resumable(run_dir, whole.total_updates or 0)

    def longer(self, config: SftConfig, more: int) -> SftConfig:
        raise ConfigError("--more: supervised fine-tuning ends with its data; start a new run")

    def next_steps(self, config: SftConfig, run_dir: Path) -> list[str]:
        if config.learner.train == "lora":
            return [_training_from(config, run_dir)]
        return [command_line("export", run_dir, "my-model", "--merge")]

    def learned(self, config: SftConfig, policy: str) -> str:
        data = config.data
        files = [Path(path).name for path in (data.run, data.file) if path]
        sources = ", ".join(f"`{source}`" for source in (*(data.imitate or data.players), *files))
        return f"answers of {sources}; games kept: {data.keep}"

    def samples(
        self, config: SftConfig, run_dir: Path, update: int | None
    ) -> tuple[int, Sequence[Any]]:
        from rlforge.buffer.batches import read_samples
        from rlforge.record.files import RunPaths, read_jsonl
        from rlforge.rollout.datasets import sample_files
        from rlforge.rollout.demonstrations import drawn
        from rlforge.show.batches import among

        made = [row["step"] for row in read_jsonl(RunPaths(root=run_dir).metrics)]
        number = among(run_dir, made, update)
        samples = read_samples(sample_files(run_dir)[0])
        return number, drawn(samples, config.learner.batch_size, config.seed, number)


SUPERVISED = Supervised()


def _training_from(config: SftConfig, run_dir: Path) -> str:
    """The command that trains on from a supervised run, with its experiment, games and model."""
    from rlforge.config.overrides import assignment, key_of, parse_overrides

    with reading(file := run_dir / "command.txt"):
        first, *_ = file.read_text(encoding="utf-8").splitlines()
        _, _, *words = shlex.split(first)
    end = words.index("--config-dir") if "--config-dir" in words else len(words)
    given, options = parse_overrides(words[:end]), words[end:]
    kept = [str(one.input_line) for one in given if key_of(one).split(".")[0] in _FOR_GAMES]
    start = assignment("learner.initial_adapter", run_dir)
    return command_line(config.teachers.command, *kept, start, *options)
