"""What every jar has of the kernel's own file systems, whichever engine makes it. Standard library only."""

from __future__ import annotations

MAX_TERMINALS = 32
TERMINALS = f"newinstance,ptmxmode=0666,mode=0600,max={MAX_TERMINALS}"
"""Options of its devpts."""

HIDDEN_IN_PROC = (
    "acpi",
    "asound",
    "bus",
    "cmdline",
    "driver",
    "fs",
    "interrupts",
    "irq",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "sys/kernel/random/boot_id",
    "sysrq-trigger",
    "timer_list",
)
"""Read by anyone, or a way to press the host's buttons."""
