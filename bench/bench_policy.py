"""How long a policy decision takes: six layers merged into a grant, and explained.

python -m bench.bench_policy [--json] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import sys
from time import perf_counter_ns
from typing import TYPE_CHECKING

from belljar.policy import manifests
from belljar.policy.decisions import decide
from belljar.policy.files import load_profile, loads

if TYPE_CHECKING:
    from collections.abc import Callable

POLICY = """
policies:
  default: {max_memory: 512MB, max_execution_time: 30s, denied_paths: [/workspace/.env]}
  ceilings: {max_memory: 4GB, max_execution_time: 10m, max_pids: 512}
  tools:
    code_run: {max_memory: 1GB, supported_languages: [python, javascript], denied_commands: [sudo]}
  agent_roles:
    base: {tools: [code_run], max_memory: 2GB, allowed_paths: [/workspace/**]}
    analyst: {inherits: base, network_access: true}
network:
  allowlist: {domains: [api.example.com, "*.example.org"]}
  denylist: {domains: ["*.internal.*", "10.*"], ports: [22]}
"""
SKILL = """
{"id": "data.plot", "limits": {"memory_mb": 900, "timeout_ms": 60000},
 "permissions": {"fs": {"read": ["inputs/**"], "write": ["artifacts/**"]}, "net": {"mode": "none"}}}
"""
OVERRIDES = {"limits": {"memory_mb": 256, "timeout_ms": 5000, "pids": 64}, "languages": ["python"]}


def cases() -> dict[str, Callable[[], object]]:
    policies = loads(POLICY)
    skill = manifests.loads(SKILL)
    asked = {"role": "analyst", "tool": "code_run", "skill": skill, "overrides": OVERRIDES}
    return {
        "role and tool, nothing asked": lambda: decide(policies, role="analyst", tool="code_run"),
        "six layers merged": lambda: decide(policies, **asked),  # type: ignore[arg-type]
        "six layers merged and explained": lambda: decide(policies, **asked).explain(),  # type: ignore[arg-type]
        "policy file loaded": lambda: loads(POLICY),
        "shipped profile loaded": lambda: load_profile("default"),
    }


def measure(work: Callable[[], object], rounds: int) -> dict[str, float]:
    times = []
    for _ in range(rounds):
        start = perf_counter_ns()
        work()
        times.append(perf_counter_ns() - start)
    times.sort()
    return {"p50_us": times[rounds // 2] / 1000, "p99_us": times[rounds * 99 // 100] / 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time policy decisions.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args()
    results = {}
    for name, work in cases().items():
        rounds = max(1, options.rounds // 10 if name.endswith("loaded") else options.rounds)
        work()
        results[name] = measure(work, rounds)
    if options.json:
        sys.stdout.write(json.dumps(results, indent=2) + "\n")
        return
    for name, result in results.items():
        sys.stdout.write(f"{name:34} p50 {result['p50_us']:9.1f} µs   p99 {result['p99_us']:9.1f} µs\n")


if __name__ == "__main__":
    main()
