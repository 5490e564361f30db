"""The coordinator's page for its operators: sites, jobs, rounds, what was revealed, what went wrong. Read-only."""
