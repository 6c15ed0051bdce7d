"""The collector with real games and scripted answers: no engine, no Ray."""

import asyncio
import dataclasses
import math
import statistics
from collections.abc import Sequence

import pytest
from tests.factories import game_spec, scripted, seat

from rlforge.config.engine import EngineConfig
from rlforge.config.games import CollectorConfig, RewardsConfig
from rlforge.config.model import ModelConfig
from rlforge.config.schema import PolicyConfig
from rlforge.engines.base import check_request
from rlforge.errors import EngineError, GameError, RunError
from rlforge.games.base import View
from rlforge.games.players import make_player
from rlforge.models.load import load_tokenizer
from rlforge.rewards.pipeline import RewardPipeline
from rlforge.rollout.collector import Collector, learned_episodes
from rlforge.rollout.episode import Answer
from rlforge.rollout.policies import SeatPolicies
from rlforge.rollout.schedule import derive_seed
from rlforge.types import (
    Completion,
    EnvSpec,
    Form,
    GameRecord,
    GameSpec,
    PolicyRef,
    SamplingParams,
    Seat,
)

ENV = EnvSpec(id="TicTacToe-v0-train", max_turns=20)


def game(number, *, trained=(True, True), env=ENV):
    """Game ``number`` between two random players."""
    form = {"policy": scripted(), "form": Form(extraction="raw")}
    seats = [seat(player, trained=trained[player], **form) for player in range(2)]
    return game_spec(f"g{number}", env, seats, seed=number)


def answering(act):
    """Answers of every game: ``act(spec, view)``, after the other games had their turn."""

    def of_game(spec):
        async def answer(seat, view, seed):
            await asyncio.sleep(0)
            return act(spec, view)

        return answer

    return of_game


def learned_of(record, config):
    """The players whose episodes are learned from."""
    episodes = learned_episodes(record, RewardPipeline(RewardsConfig()), config)
    return [episode[0].player_id for episode in episodes]


class ListPorts:
    """Hands out a fixed list of games, at most ``room`` a call, and keeps what comes back."""

    def __init__(self, games: Sequence[GameSpec]) -> None:
        self.waiting = list(games)
        self.deliveries: list[Sequence[GameRecord]] = []

    async def next_games(self, wanted: int) -> list[GameSpec] | None:
        await asyncio.sleep(0)
        if not self.waiting:
            return None
        handed, self.waiting = self.waiting[:wanted], self.waiting[wanted:]
        return handed

    async def deliver(self, records: Sequence[GameRecord]) -> None:
        self.deliveries.append(records)

    @property
    def records(self) -> list[GameRecord]:
        return [record for games in self.deliveries for record in games]


class Table:
    """Random legal play; of games by name, ``forfeit`` loses at a seat and ``broken`` raises."""

    def __init__(self, broken=None, forfeit=None):
        self.broken, self.forfeit = broken or {}, forfeit or {}
        self.under_way = self.most_under_way = 0

    def __call__(self, spec):
        player = make_player("random_legal", spec.env, spec.seed)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)

        def act(spec, view):
            if spec.game_id in self.broken:
                raise self.broken[spec.game_id]
            loses = self.forfeit.get(spec.game_id) == view.player_id
            return Completion(text="[99]" if loses else player.act(view), finish_reason="scripted")

        return answering(act)(spec)


OUT = EngineError("the engine is out")


async def test_every_game_is_played_once_and_delivered():
    ports = ListPorts([game(i) for i in range(50)])
    table = Table()
    await Collector(CollectorConfig(num_train_workers=8), ports, table).train()
    assert sorted(record.spec.game_id for record in ports.records) == sorted(
        f"g{i}" for i in range(50)
    )
    assert all(record.error is None for record in ports.records)


async def test_a_collection_that_was_cancelled_can_begin_again_in_all_its_slots():
    ports = ListPorts([game(i) for i in range(40)])
    table = Table()
    collector = Collector(CollectorConfig(num_train_workers=8), ports, table)
    first = asyncio.create_task(collector.train())
    for _ in range(10):  # turns of the event loop
        await asyncio.sleep(0)
    assert table.most_under_way == 8
    first.cancel()
    await asyncio.wait([first])
    lost = 40 - len(ports.waiting) - len(ports.records)
    assert lost > 0
    await asyncio.wait_for(collector.train(), 60)
    assert len({record.spec.game_id for record in ports.records}) == len(ports.records) == 40 - lost


async def test_failed_games_are_recorded_and_replaced():
    ports = ListPorts([game(i) for i in range(10)])
    await Collector(
        CollectorConfig(num_train_workers=4), ports, Table({"g3": OUT, "g7": OUT})
    ).train()
    failed = [record for record in ports.records if record.error is not None]
    assert {record.spec.game_id for record in failed} == {"g3", "g7"}
    assert len(ports.records) - len(failed) == 10
    for record in ports.records:
        assert learned_of(record, CollectorConfig()) == ([0, 1] if record.error is None else [])


async def test_too_many_failures_in_a_row_end_the_run_with_their_cause():
    class Broken(Table):
        def __call__(self, spec: GameSpec) -> Answer:
            self.broken[spec.game_id] = OUT
            return super().__call__(spec)

    ports = ListPorts([game(i) for i in range(4)])
    with pytest.raises(RunError, match=r"5 games failed in a row.*the engine is out"):
        await Collector(
            CollectorConfig(num_train_workers=2), ports, Broken(), max_failures=5
        ).train()
    assert len(ports.records) >= 5


@pytest.mark.parametrize(
    ("filtering", "trained", "forfeits", "learned"),
    [
        (False, (True, False), 1, (0,)),
        (False, (True, True), 1, (0, 1)),
        (True, (True, False), 1, ()),
        (True, (True, False), 0, (0,)),
        (True, (True, True), 1, (1,)),
        (True, (True, True), 0, (0,)),
        (True, (True, True), None, (0, 1)),
    ],
)
async def test_with_the_filter_only_the_seat_that_forfeits_a_game_is_learned_from(
    filtering, trained, forfeits, learned
):
    ports = ListPorts([game(0, trained=trained)])
    config = CollectorConfig(filter_opponent_invalid=filtering)
    table = Table(forfeit={} if forfeits is None else {"g0": forfeits})
    await Collector(config, ports, table).train()
    assert ports.records[0].invalid_by == forfeits
    assert learned_of(ports.records[0], config) == list(learned)


async def test_ports_that_fail_end_the_collection_at_once():
    class Gone(ListPorts):
        async def deliver(self, records: Sequence[GameRecord]) -> None:
            raise RunError("the buffer is gone")

    class Endless(Gone):
        async def next_games(self, wanted: int) -> list[GameSpec] | None:
            await asyncio.sleep(0.01)
            return [game(len(self.waiting))]

    with pytest.raises(RunError, match="the buffer is gone"):
        await asyncio.wait_for(
            Collector(CollectorConfig(num_train_workers=4), Endless([]), Table()).train(), 20
        )


async def test_evaluation_replays_a_failed_game_once():
    tries: list[str] = []

    class Once(Table):
        def __call__(self, spec: GameSpec) -> Answer:
            tries.append(spec.game_id)
            self.broken = {"g1": OUT} if tries.count("g1") == 1 else {}
            return super().__call__(spec)

    collector = Collector(CollectorConfig(num_eval_workers=1), ListPorts([]), Once())
    records = await collector.evaluate([game(0), game(1), game(2)])
    assert [record.spec.game_id for record in records] == ["g0", "g1", "g2"]
    assert all(record.error is None for record in records)
    assert tries == ["g0", "g1", "g1", "g2"]


ROWS = EnvSpec(id="ConnectFour-v0-train")
CONTEXT = PolicyRef(uid="step-0", kind="checkpoint")


class Models:
    """Random legal play by a model whose prompts are the bytes of observations, ``most`` at most.

    Where ``fails`` says so, the engine fails in the middle of a game, as when its process dies.
    """

    def __init__(self, most=10**6, fails=lambda spec, turn: False):
        self.most, self.fails = most, fails
        self.longest = {}

    def __call__(self, spec):
        player = make_player("random_legal", spec.env, spec.seed)
        lengths = self.longest[spec.game_id] = []

        def act(spec, view):
            prompt = view.observation.encode()
            lengths.append(len(prompt))
            check_request(
                prompt, SamplingParams(), CONTEXT, max_model_len=self.most, vocab_size=10**6
            )
            if self.fails(spec, len(lengths)):
                raise EngineError("the engine died")
            return Completion(text=player.act(view), token_ids=(1,), logprobs=(0.0,))

        return answering(act)(spec)


class Thinker:
    """An engine for one game, whose answers are an action after 200 to 400 tokens of thought."""

    def __init__(self, spec: GameSpec, most: int) -> None:
        self.name, self.most = spec.game_id, most
        self.action = ""
        #: Tokens of the prompt, and of prompt and answer, by turn.
        self.needed: list[tuple[int, int]] = []

    async def generate(self, prompt_token_ids, params, policy):
        prompt = len(prompt_token_ids)
        length = 200 + derive_seed(self.name, len(self.needed)) % 201
        self.needed.append((prompt, prompt + length))
        room = check_request(
            prompt_token_ids, params, policy, max_model_len=self.most, vocab_size=10**6
        )
        whole, length = length <= room, min(length, room)
        return Completion(
            text=self.action if whole else "Let me think",
            prompt_token_ids=tuple(prompt_token_ids),
            token_ids=(1,) * length,
            logprobs=(0.0,) * length,
            finish_reason="stop" if whole else "length",
        )


class Thinkers:
    """Random legal play at the seats of models with long answers."""

    def __init__(self, tokenizer: object, most: int = 10**6) -> None:
        self.tokenizer, self.most = tokenizer, most
        self.config = PolicyConfig(engine=EngineConfig(max_tokens=600))
        self.needed: dict[str, list[tuple[int, int]]] = {}

    def __call__(self, spec: GameSpec) -> Answer:
        player = make_player("random_legal", spec.env, spec.seed)
        engine = Thinker(spec, self.most)
        self.needed[spec.game_id] = engine.needed
        models = SeatPolicies(self.config, self.tokenizer, engine, ())  # type: ignore[arg-type]
        seats = [dataclasses.replace(seat, policy=CONTEXT) for seat in spec.seats]
        at = [models.at_seat(seat, spec.env, 1.0) for seat in seats]

        async def answer(seat: Seat, view: View, seed: int) -> Completion:
            await asyncio.sleep(0)
            engine.action = player.act(view)
            return await at[seat.player_id].answer(view, seed)

        return answer


async def learned_from(models, first, count=70):
    specs = [
        dataclasses.replace(game(number, env=ROWS), seed=derive_seed("lengths", number))
        for number in range(first, first + count)
    ]
    ports = ListPorts(specs)
    config = CollectorConfig(num_train_workers=64)
    await Collector(config, ports, models, max_failures=10**6).train()
    return [record for record in ports.records if record.error is None]


def differ(one: Sequence[int], other: Sequence[int]) -> bool:
    """Two-sample Kolmogorov-Smirnov test, asymptotic critical value at the level 0.01."""
    values = sorted({*one, *other})
    shares = [
        [sum(x <= v for x in sample) / len(sample) for v in values] for sample in (one, other)
    ]
    distance = max(abs(a - b) for a, b in zip(*shares, strict=True))
    return distance > 1.63 * math.sqrt((len(one) + len(other)) / (len(one) * len(other)))


@pytest.fixture(scope="module")
def unlimited() -> tuple[Models, list[GameRecord]]:
    models = Models()
    return models, asyncio.run(learned_from(models, first=0))


async def test_a_context_limit_does_not_bias_the_lengths_of_games(unlimited):
    free, whole = unlimited
    longest = {game_id: max(lengths) for game_id, lengths in free.longest.items()}
    most = int(statistics.median(longest.values()))
    # An unlimited game, cut where its first prompt would not have fitted.
    expected = [
        next(
            (turn for turn, n in enumerate(free.longest[r.spec.game_id]) if n >= most), len(r.turns)
        )
        for r in whole
    ]
    limited = await learned_from(Models(most), first=1000)
    assert len(limited) == len(whole)
    assert not differ([len(record.turns) for record in limited], expected)
    cut = [record for record in limited if record.end_reason == "context_limit"]
    assert 0.3 < len(cut) / len(limited) < 0.7
    assert all(record.rewards == {0: 0.0, 1: 0.0} for record in cut)
    # The test can tell: games that end by themselves within the limit are shorter.
    ended = [len(record.turns) for record in limited if record not in cut]
    assert differ(ended, expected)


async def test_long_answers_at_a_context_limit_do_not_bias_the_lengths_of_games(small_model):
    """The room for an answer shrinks: it is cut many turns before the prompt alone is too long."""
    tokenizer = load_tokenizer(ModelConfig(name=str(small_model)))
    free = Thinkers(tokenizer)
    whole = await learned_from(free, first=0, count=50)
    most = int(statistics.median(max(n for _, n in turns) for turns in free.needed.values()))
    # An unlimited game, cut after its first answer that would not have fitted.
    expected = [
        next(
            (turn + (prompt < most) for turn, (prompt, n) in enumerate(turns) if n > most),
            len(turns),
        )
        for turns in (free.needed[record.spec.game_id] for record in whole)
    ]
    limited = await learned_from(Thinkers(tokenizer, most), first=1000, count=50)
    assert len(limited) == len(whole)
    assert {record.end_reason for record in limited} == {"finished", "context_limit"}
    cut = [record for record in limited if record.end_reason == "context_limit"]
    assert not differ([len(record.turns) for record in limited], expected)
    assert 0.3 < len(cut) / len(limited) < 0.7
    for record in cut:
        last = record.turns[-1]
        assert record.rewards == {0: 0.0, 1: 0.0}
        assert (last.player_id, last.completion.finish_reason) == (record.cut_by, "context")
        # All that was sampled is kept.
        assert len(last.completion.prompt_token_ids) + len(last.completion.token_ids) == most
    # The test can tell: games that end by themselves within the limit are shorter.
    ended = [len(record.turns) for record in limited if record not in cut]
    assert differ(ended, expected)


async def test_failures_of_the_engine_do_not_bias_the_lengths_of_games(unlimited):
    """Each request may fail, so that long games fail more often than short ones."""

    def fails(spec: GameSpec, turn: int) -> bool:
        return "~" not in spec.game_id and derive_seed(spec.game_id, turn) % 25 == 0

    survived = await learned_from(Models(fails=fails), first=0)
    repeated = [record for record in survived if "~" in record.spec.game_id]
    assert len(repeated) > 25
    lengths = sorted(len(record.turns) for record in unlimited[1])
    assert sorted(len(record.turns) for record in survived) == lengths
    # The test can tell: games that did not fail are shorter.
    spared = [len(record.turns) for record in survived if record not in repeated]
    assert statistics.mean(spared) < 0.95 * statistics.mean(lengths)


async def test_a_first_prompt_that_does_not_fit_ends_the_run_with_its_message():
    ports = ListPorts([game(i) for i in range(4)])
    with pytest.raises(RunError, match=r"3 games failed in a row.*too long: engine.max_model_len"):
        await Collector(CollectorConfig(), ports, Models(most=5), max_failures=3).train()


# ---------------------------------------------------------------- legal tokens


def options_of(seat, view, completion, accepted):
    return (tuple(range(len(view.legal_actions))),)


def legal_of_seats(record):
    """The numbers of tokens that turns list, by player."""
    numbers = {0: set(), 1: set()}
    for turn in record.turns:
        numbers[turn.player_id].add(sum(map(len, turn.legal_tokens)))
    return numbers


async def test_training_games_alone_record_the_legal_tokens_of_trained_seats():
    ports, plain = ListPorts([game(0, trained=(True, False)), game(1)]), ListPorts([game(0)])
    collector = Collector(CollectorConfig(), ports, Table(), legal_tokens=options_of)
    await collector.train()
    counts = {record.spec.game_id: legal_of_seats(record) for record in ports.records}
    assert counts["g0"][0] >= {9, 7, 5}
    assert counts["g0"][1] == {0}
    assert counts["g1"][1] >= {8, 6}
    (evaluated,) = await collector.evaluate([game(0)])
    await Collector(CollectorConfig(), plain, Table()).train()  # with another algorithm
    for record in (evaluated, *plain.records):
        assert legal_of_seats(record) == {0: {0}, 1: {0}}
        assert len(record.turns) >= 5
    (record,) = (record for record in ports.records if record.spec.game_id == "g0")
    (episode,) = RewardPipeline(RewardsConfig()).shape(record)
    own = [turn for turn in record.turns if turn.player_id == 0]
    assert [sample.legal_tokens for sample in episode] == [turn.legal_tokens for turn in own]


async def test_games_that_are_handed_out_come_back_in_their_order_with_their_failures():
    table = Table(broken={"g3": GameError("the rules have a hole")}, forfeit={"g5": 1})
    config = CollectorConfig(filter_opponent_invalid=True)
    played = await Collector(config, None, table).play([game(i) for i in range(12)])
    ids = [[record.spec.game_id for record in games] for games in played]
    assert ids == [["g3", "g3~1"] if i == 3 else [f"g{i}"] for i in range(12)]
    assert [learned_of(record, config) for record in played[3]] == [[], [0, 1]]
    assert learned_of(played[5][0], config) == [1]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OUT, "did not end by its rules: EngineError: the engine is"),
        (GameError("the rules have a hole"), "g0~3 failed 3 times"),
    ],
)
async def test_games_that_are_handed_out_end_by_their_rules_or_end_the_run(error, message):
    failing = answering(lambda spec, view: raised(error))
    with pytest.raises(RunError, match=message):
        await Collector(CollectorConfig(), None, failing, max_failures=3).play([game(0)])


def raised(error):
    raise error


async def test_a_game_that_only_the_clock_ends_ends_a_strict_run():
    def slow(spec):
        async def answer(seat, view, seed):
            await asyncio.sleep(0.04)
            return Completion(text=view.legal_actions[0], token_ids=(1,))

        return answer

    timed = game(0, env=dataclasses.replace(ENV, timeout_s=0.05))
    with pytest.raises(RunError, match=r"g0 did not end by its rules: .*env.timeout_s"):
        await Collector(CollectorConfig(), None, slow).play([timed])


async def test_evaluation_games_that_are_not_admitted_are_left_out() -> None:
    asked: list[str] = []

    async def every_other(spec: GameSpec) -> bool:
        asked.append(spec.game_id)
        return len(asked) % 2 == 1

    config = CollectorConfig(num_eval_workers=1)
    collector = Collector(
        config,
        None,
        answering(lambda spec, view: Completion(text=view.legal_actions[0])),
        admit=every_other,
    )
    specs = [game(number) for number in range(4)]
    records = await collector.evaluate(specs)
    assert [record.spec for record in records] == [specs[0], specs[2]]
    assert asked == [spec.game_id for spec in specs]
