"""The adapters, one folder a framework: what each supplies of `islices.Backend`."""
