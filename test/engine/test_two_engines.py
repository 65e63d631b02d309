"""Two engines on one sidecar: one model shares what either saved, others never meet; and what is refused at start."""
