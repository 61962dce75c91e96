"""Pure policy.

What runs next, where a request lives, when it moves. No torch, no IO, no sleep, no clock of its
own.

State and events in, decisions out. The engines and the simulator run the very same objects.
"""
