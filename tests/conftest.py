"""What all tests share."""

import signal

import hypothesis

# A busy machine may take long over any one example.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

# A shell starts what it runs in the background with Ctrl-C ignored, and nodes would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
