"""Grammars that constrain what is generated: compiled by llguidance, bounded, off the main loop.

Knows token ids and a tokenizer; nothing of tensors, engines or HTTP.
"""

from dualpace.grammar.compiled import CompiledGrammar, GrammarMatcher
from dualpace.grammar.grammars import Grammars
from dualpace.grammar.vocabulary import VocabularySource, vocabulary_of

__all__ = [
    "CompiledGrammar",
    "GrammarMatcher",
    "Grammars",
    "VocabularySource",
    "vocabulary_of",
]
