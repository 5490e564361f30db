"""scikit-learn-like objects that a job leaves at a site, and how they are kept."""
