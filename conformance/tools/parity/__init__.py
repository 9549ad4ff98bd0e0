"""`islices parity`: two recorded trainings compared step by step; or, as examples of it, one of two embedding models
trained on every backend from one start, with a bound derived from its loss.

recorded  two recordings, by `islices.parity`
text      a text, its vocabulary, its lines
models    the models: their padded batches, what is looked up, their gradient by hand in NumPy
rounding  numbers that carry how far rounding can have taken them
bound     how far apart the tables may be after each step
training  one backend's training by islices; torch, tensorflow, jax, mxnet: the losses in each framework's own
          functions, and its training without islices
run       all in step, until the end or the first gap above the bound
why       what two backends that left each other had, handed to `islices.diff`
command   the command line; report and plot: what is shown
"""
