"""The collector with real games and scripted answers: no engine, no Ray."""

import asyncio
import dataclasses
import math
import statistics
from collections.abc import Sequence

import pytest
from tests.factories import game_spec, scripted, seat

from rlforge.config.games import CollectorConfig, RewardsConfig
from rlforge.engines.base import check_request
from rlforge.errors import EngineError, GameError, RunError
from rlforge.games.players import make_player
from rlforge.rewards.pipeline import RewardPipeline
from rlforge.rollout.collector import Collector, learned_episodes
from rlforge.rollout.episode import Answer
from rlforge.rollout.schedule import derive_seed
from rlforge.types import Completion, EnvSpec, Form, GameRecord, GameSpec, PolicyRef, SamplingParams

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


async def test_a_delivery_is_whole_although_the_collection_is_cancelled_meanwhile():
    begun, arrives = asyncio.Event(), asyncio.Event()

    class Slow(ListPorts):
        async def deliver(self, records: Sequence[GameRecord]) -> None:
            begun.set()
            await arrives.wait()
            await super().deliver(records)

    ports = Slow([game(i) for i in range(4)])
    training = asyncio.create_task(Collector(CollectorConfig(), ports, Table()).train())
    await begun.wait()
    training.cancel()
    await asyncio.sleep(0)
    arrives.set()
    await asyncio.wait([training])
    assert sorted(record.spec.game_id for record in ports.records) == ["g0", "g1", "g2", "g3"]


async def test_failed_games_are_recorded_and_replaced():
    ports = ListPorts([game(i) for i in range(10)])
    await Collector(
        CollectorConfig(num_train_workers=4), ports, Table({"g3": OUT, "g7": OUT})
    ).train()
    failed = [record for record in ports.records if record.error is not None]
    assert {record.spec.game_id for record in failed} == {"g3", "g7"}
    played = sorted(r.spec.game_id for r in ports.records if r.error is None)
    assert played == sorted(f"g{i}~1" if i in (3, 7) else f"g{i}" for i in range(10))
    for record in ports.records:
        assert learned_of(record, CollectorConfig()) == ([0, 1] if record.error is None else [])


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
    """Random legal play by a model whose prompts are the bytes of observations.

    most: Tokens of a prompt and its answer.
    thought: Most tokens of an answer, at least half of it, before its action.
    fails: Whether the engine fails in the middle of a game, as when its process dies.
    """

    def __init__(self, most=10**6, thought=0, fails=lambda spec, turn: False):
        self.most, self.thought, self.fails = most, thought, fails
        #: By game: tokens of the prompt, and of prompt and answer, by turn.
        self.needed = {}

    def __call__(self, spec):
        player = make_player("random_legal", spec.env, spec.seed)
        turns = self.needed[spec.game_id] = []

        def act(spec, view):
            prompt = view.observation.encode()
            half = self.thought // 2
            length = 1 + half + derive_seed(spec.game_id, len(turns)) % (half + 1)
            turns.append((len(prompt), len(prompt) + length))
            room = check_request(
                prompt, SamplingParams(), CONTEXT, max_model_len=self.most, vocab_size=10**6
            )
            if self.fails(spec, len(turns)):
                raise EngineError("the engine died")
            cut = length > room
            return Completion(
                text="Let me think" if cut else player.act(view),
                token_ids=(1,) * min(length, room),
                logprobs=(0.0,) * min(length, room),
                finish_reason="context" if cut else "stop",
            )

        return answering(act)(spec)


async def learned_from(models, first):
    specs = [
        dataclasses.replace(game(number, env=ROWS), seed=derive_seed("lengths", number))
        for number in range(first, first + 70)
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
def unlimited() -> list[GameRecord]:
    return asyncio.run(learned_from(Models(), first=0))


@pytest.mark.parametrize("thought", [0, 800])
async def test_a_context_limit_does_not_bias_the_lengths_of_games(thought):
    """With long answers the room for one shrinks: it is cut before the prompt alone is too long."""
    free = Models(thought=thought)
    whole = await learned_from(free, first=0)
    most = int(statistics.median(max(n for _, n in turns) for turns in free.needed.values()))
    # An unlimited game, cut after its first answer that would not have fitted.
    expected = [
        next(
            (turn + (prompt < most) for turn, (prompt, n) in enumerate(turns) if n > most),
            len(turns),
        )
        for turns in (free.needed[record.spec.game_id] for record in whole)
    ]
    limited = await learned_from(Models(most, thought), first=1000)
    assert len(limited) == len(whole)
    assert not differ([len(record.turns) for record in limited], expected)
    cut = [record for record in limited if record.end_reason == "context_limit"]
    assert 0.3 < len(cut) / len(limited) < 0.7
    assert all(record.rewards == {0: 0.0, 1: 0.0} for record in cut)
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
    lengths = sorted(len(record.turns) for record in unlimited)
    assert sorted(len(record.turns) for record in survived) == lengths
    # The test can tell: games that did not fail are shorter.
    spared = [len(record.turns) for record in survived if record not in repeated]
    assert statistics.mean(spared) < 0.95 * statistics.mean(lengths)


async def test_a_first_prompt_that_does_not_fit_ends_the_run_with_its_message():
    ports = ListPorts([game(i) for i in range(4)])
    with pytest.raises(RunError, match=r"3 games failed in a row.*too long: engine.max_model_len"):
        await Collector(CollectorConfig(), ports, Models(most=5), max_failures=3).train()
    assert len(ports.records) >= 3  # delivered first


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
