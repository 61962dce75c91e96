"""What clients may use: limits by key, kept in this process or, for several gateways, in Redis.

Both stores follow the generic cell rate algorithm (ATM Forum, Traffic Management 4.0, section
4.4.2): a client has a time up to which its budget is spent, and each unit moves it on. It knows
clients by name; nothing of requests or HTTP.
"""
