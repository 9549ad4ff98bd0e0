"""The part "step": whole training steps, which is what a user waits for.

A step is lookup, loss, gradient, clipping by the global norm and an optimizer on the rows that the batch names. Every
way to take it starts from the same tables and reads the same batches; losses are compared before anything is timed.

    model     sizes, batches, and the bytes that a step must move    ours      islices' ways, the same on each framework
    measure   ways made, compared, timed                             report    tables of it
    and one module a framework: its loss, its compiler, and what its users write without islices
"""
