"""What happened: one record per run, one receipt per outcome, nothing that can be changed unseen."""
