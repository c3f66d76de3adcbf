"""Where a jar runs: one module per engine, each behind the same contract."""
