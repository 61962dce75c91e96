"""Between text and tokens: templates, prompts, detokenization, forms of the output."""
