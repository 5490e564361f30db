"""The site's own page: policy, approvals, audit log, what left and what was revealed. For this machine only."""
