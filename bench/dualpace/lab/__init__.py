"""The policy lab: the schedulers that serve, under virtual time, against their baselines.

It knows schedulers, profiles and traces. Services, tensors and wall clocks it does not know; every
figure it prints is simulated, and says so.
"""
