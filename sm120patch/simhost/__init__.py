"""A simulated SGLang host: a real HTTP server whose speed and answers are declared, not real.

Reads the target environment; serves HTTP. Its evidence is labelled `simulated` everywhere.
"""

from __future__ import annotations

from sm120patch.simhost.scenarios import (
    ScenarioFacts,
    scenario_facts,
    scenario_names,
    scenario_words,
)

__all__ = ["ScenarioFacts", "scenario_facts", "scenario_names", "scenario_words"]
