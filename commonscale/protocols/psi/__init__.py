"""Which values two sites have in common, found without showing the others: private set intersection, several methods.

Every module is one function that all roles run. What only a site has, its values and their identifiers, is HIDDEN at
the coordinator.
"""
