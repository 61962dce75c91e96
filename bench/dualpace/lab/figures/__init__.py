"""Figures in the manner of the paper's evaluation, from simulated runs: PNG, and CSV beside it.

Each module draws figures that share runs. The numbers are those of the paper's figures that show
the same thing; what is drawn is ours, and says that it is simulated.
"""
