"""What all tests share."""

import hypothesis

# A busy machine may take long over any one example.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")
