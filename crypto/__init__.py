"""Pure local steps: arithmetic, masks, shares, signatures. Imports nothing of ours, draws no network."""
