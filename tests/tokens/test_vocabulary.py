"""Words, the characters they are known by, and words among numbers."""

import pytest
import torch

from posattn.tokens.vocabulary import VOCABULARIES, token_features, word_code, word_index

LETTERS, PROMPTS = VOCABULARIES["letters"], VOCABULARIES["prompts"]


@pytest.mark.parametrize("name", ["letters", "prompts"])
def test_a_word_is_known_by_its_characters(name):
    words = VOCABULARIES[name]
    table = words.table()
    assert table.shape == (len(words.words), len(words.characters))
    assert (table.sum(dim=1) == len(words.words[0])).all() and (table.sum(dim=0) > 0).all()
    assert len(table.unique(dim=0)) == len(words.words)
    assert [words.index[word] for word in words.words] == list(range(len(words.words)))


def test_the_table_of_single_characters_is_the_identity():
    assert torch.equal(LETTERS.table(), torch.eye(16)) and "".join(LETTERS.words) == "0123abcdefghij~ "


def test_words_of_one_digit_share_the_characters_that_they_share():
    table = PROMPTS.table()
    one, two, noise = (table[PROMPTS.index[word]] for word in ("Cat  5", "Cat 25", "Cat+ 5"))
    assert (one * two).sum() == 5 and (one * noise).sum() == 5 and (two * noise).sum() == 4


def test_numbers_and_words_stand_beside_each_other():
    words = torch.tensor([0, 17, len(PROMPTS.words) - 1])
    x = torch.cat([word_code(words), torch.tensor([0.0, 3.45])])
    assert torch.equal(word_index(x)[:3], words)
    read = token_features(x, PROMPTS.table(), numbers=True)
    assert torch.equal(read[:3, :-1], PROMPTS.table()[words]) and (read[:3, -1] == 0).all()
    assert (read[3:, :-1] == 0).all() and read[3:, -1].tolist() == x[3:].tolist()
