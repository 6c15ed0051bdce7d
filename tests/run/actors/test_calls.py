import pytest
import ray
from tests.harness.in_process import InProcessActor

from rlforge.run.actors.calls import ActorCalls
from rlforge.run.actors.cluster import RunActors

DEATH = ray.exceptions.OutOfMemoryError("Memory on the node was 22.6GB / 23.5GB")


class Engine:
    def __init__(self, death):
        self.death = death

    async def report(self):
        if self.death is not None:
            raise self.death


@pytest.mark.parametrize(
    ("deaths", "elastic", "named"),
    [
        ([None], False, False),
        ([None, DEATH], False, True),
        ([None, DEATH], True, False),
        ([DEATH, DEATH], True, True),
        ([ray.exceptions.ActorUnavailableError("it restarts", None)], False, False),
    ],
)
async def test_an_engine_that_was_given_up_is_named_before_the_games_that_failed_for_it(
    deaths, elastic, named
):
    engines = {f"engine-{n}": InProcessActor(Engine(death)) for n, death in enumerate(deaths)}
    calls = ActorCalls(RunActors(engines), print, elastic=elastic)
    failed = ray.exceptions.RayTaskError("play", "32 games failed in a row", ValueError("games"))

    async def play():
        raise failed

    with pytest.raises(ray.exceptions.RayError) as caught:
        await calls.unless_given_up("collector-0", play())
    assert caught.value is (DEATH if named else failed)
