"""The knots that our NEO chooses are those of the recorded tables, derived from the settings."""

from dualpace.scheduling.baselines.neo.predictor import (
    cpu_decode_knots,
    gpu_decode_knots,
    linear_knots,
    prefill_knots,
)
from tests.unit.scheduling.baselines.neo_fixtures import config_of, recorded


def test_knots_follow_from_the_settings() -> None:
    document = recorded()
    uses = {s["tables"]: s["config"] for s in document["scenarios"]}
    assert len(uses) > 50
    for name, values in uses.items():
        config, tables = config_of(values), document["tables"][name]
        assert list(linear_knots(config)) == tables["linr"]["x"]
        assert list(prefill_knots(config)) == tables["pref"]["x"]
        assert list(gpu_decode_knots(config)) == tables["gdec"]["x"]
        requests, tokens = cpu_decode_knots(config)
        assert list(requests) == tables["cdec"]["s"]
        assert list(tokens) == tables["cdec"]["n"]
