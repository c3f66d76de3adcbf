"""May it run, and with what? Layers of opinion that merge into one `Grant`. Pure: no clock, no network."""
