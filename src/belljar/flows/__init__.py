"""Many runs as one job, and jobs with a name: skills and tools."""
