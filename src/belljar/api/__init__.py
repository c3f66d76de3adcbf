"""The HTTP door: one resource a module, and in front of them all what every request must pass."""
