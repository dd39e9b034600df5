"""An audit in the formats of other tools: CycloneDX, Prometheus, SARIF. Pure."""

from __future__ import annotations
