"""The printable form of positions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import ConfigError
from headgate.model.positions import PositionToken, decode_positions

NUMBERS = st.integers(min_value=0, max_value=2**63 - 1)
TOKEN = PositionToken("orders", 7, "5" * 32, {0: 60, 2**40: 2**62}, [0], [(42, 2**62 + 1)])


@given(st.dictionaries(NUMBERS, NUMBERS), st.lists(NUMBERS), st.lists(st.tuples(NUMBERS, NUMBERS)))
def test_positions_survive_as_printable_text(positions, held, history) -> None:
    token = PositionToken("orders", 7, "5" * 32, positions, held, history)
    text = token.encode()

    assert token == decode_positions(text)
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text


def test_every_part_and_every_other_character_is_noticed() -> None:
    text = TOKEN.encode()
    others = [text[:n] for n in range(len(text))]
    others += [text[:n] + ("A" if text[n] != "A" else "B") + text[n + 1 :] for n in range(len(text) - 1)]
    for other in others:
        with pytest.raises(ConfigError, match="not a text that Consumer"):
            decode_positions(other)


@pytest.mark.parametrize("given", [{0: 1}, "", "positions-1.%%%"])
def test_what_is_no_text_of_a_consumer_is_refused(given) -> None:
    with pytest.raises(ConfigError, match="positions"):
        decode_positions(given)
