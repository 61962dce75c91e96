"""What is told of requests and engines: metrics and traces. Names are in `metric_names`."""
