"""Tools: how a model is told of functions, how it calls them, and how its calls are read.

Knows text and JSON; nothing of tokens, engines or HTTP.
"""
