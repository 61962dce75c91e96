"""HTTP front of a node: the OpenAI dialect, tokenization, detokenization, streaming. No torch."""
