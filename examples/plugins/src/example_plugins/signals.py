"""Signals: conditions on the records of a run, which it names where they hold."""

from rlforge.record.signals import Condition, Finding, Seen


def _draws(seen: Seen, threshold: float) -> Finding | None:
    for env, share in seen.of_games("draw_rate"):
        if share >= threshold:
            return Finding(
                text=f"{share:.0%} of the games of {env} are drawn",
                mend="pay draws less than wins (rewards.final)",
            )
    return None


def _long_answers(seen: Seen, threshold: float) -> Finding | None:
    for env, tokens in seen.of_games("completion_length"):
        if tokens >= threshold:
            return Finding(
                text=f"answers in {env} have {tokens:.0f} tokens",
                mend="lower engine.max_tokens, or pay short answers (rewards.step)",
            )
    return None


DRAWS = Condition("share of games that are drawn", 0.9, ("*/draw_rate",), _draws)
LONG_ANSWERS = Condition("tokens of an answer", 2000, ("*/completion_length",), _long_answers)
