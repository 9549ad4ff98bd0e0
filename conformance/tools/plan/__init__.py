"""`islices plan`: what reducing sparse gradients over many ranks costs, way by way, before anybody starts them.

`zipf` says how many rows there will be, `model` what moving them costs, `measure` what it did cost on this machine.
"""
