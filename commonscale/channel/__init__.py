"""What protocols see of the network: typed messages in slots, sealed between sites, bound to a transcript.

channel     one role's end of one run
slot        the name of one message, written once
seal        site-to-site messages: sealed to the receiver, signed by the sender
mailbox     slots in memory
transcript  everything announced so far in a run, as one hash
"""
