"""Networks that read tokens in place of numbers, or numbers among tokens: their vocabularies and the networks themselves."""

from posattn.tokens.token_model import TokenConfig, TokenTransformer
from posattn.tokens.vocabulary import VOCABULARIES, Vocabulary

__all__ = ["VOCABULARIES", "TokenConfig", "TokenTransformer", "Vocabulary"]
