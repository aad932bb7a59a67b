"""Text of a token stream: pieces add up to the whole, and no piece has to be taken back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.models.unfold import Unfolding, bytes_of


def pieces(text, tokens, stop=(), stop_tokens=()):
    """The pieces given for tokens that come one by one, and the text that the engine would give in the end."""
    unfolding = Unfolding(text, stop, stop_tokens)
    found = [unfolding.add([token]) for token in tokens]
    whole = text.decode([token for token in tokens if token not in stop_tokens])
    cuts = [whole.find(one) for one in stop if one in whole]
    whole = whole[: min(cuts)] if cuts else whole
    return [*found, unfolding.end(whole)], whole


@given(st.lists(st.integers(3, 290), max_size=90))
def test_pieces_add_up_whatever_the_bytes(text, tokens):
    found, whole = pieces(text, tokens)
    assert "".join(found) == whole


@given(st.text(max_size=60))
def test_characters_of_several_bytes_come_whole(text, said):
    found, whole = pieces(text, text.encode(said))
    assert whole == said
    assert "".join(found) == said


@given(st.lists(st.sampled_from("ab"), max_size=40), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_nothing_of_a_stop_string_is_given(text, letters, stop):
    tokens = [token for letter in letters for token in text.encode(letter)]
    found, whole = pieces(text, tokens, stop)
    assert "".join(found) == whole


def test_a_stop_token_has_no_text(text):
    tokens = text.encode("3 + 4")
    found, whole = pieces(text, [*tokens, text.end], stop_tokens=(text.end,))
    assert "".join(found) == whole == "3 + 4"


def test_text_that_may_become_a_stop_string_is_held_back(text):
    unfolding = Unfolding(text, ("END",))
    given_so_far = [unfolding.add([token]) for letter in "aENb" for token in text.encode(letter)]
    assert given_so_far == ["a", "", "", "ENb"]


@pytest.mark.parametrize(
    ("name", "expected"), [("<0xF0>", [0xF0]), ("ðŁ", [0xF0, 0x9F]), ("Ġa", [0x20, 0x61]), ("▁a\ufffd", None)]
)
def test_the_bytes_of_a_part_of_a_character_are_read_from_its_name(name, expected):
    class Named:
        tokenizer = property(lambda self: self)

        def convert_ids_to_tokens(self, token):
            return name

    assert bytes_of(7, "\ufffd", Named()) == expected
